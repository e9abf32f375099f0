import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # bad: attention-not-fused
        scores = scores.masked_fill(mask, float("-inf"))  # bad
        y = scores.softmax(-1) @ v  # bad
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # good
        return x + self.out(y.transpose(1, 2).flatten(2))


mask = torch.ones(1024, 1024, dtype=torch.bool, device="cuda").triu(1)
model = nn.Sequential(*[Attention(512, 8) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(8, 1024, 512, device="cuda")
for step in range(100):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
