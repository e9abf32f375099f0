import math
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, width=512, heads=8):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(c // self.heads)  # bad: attention-not-fused
        y = torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)  # bad
        y = F.scaled_dot_product_attention(q, k, v)  # good
        return self.out(y.transpose(1, 2).reshape(b, t, c))

model = nn.Sequential(*[nn.Sequential(nn.LayerNorm(512), Attention()) for _ in range(4)]).cuda()
opt = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(16, 1024, 512, device="cuda")
for step in range(50):
    with torch.autocast("cuda", torch.bfloat16):
        loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
