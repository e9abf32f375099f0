import torch
from torch import nn

class Causal(nn.Module):
    def __init__(self, width=256, length=256):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.mask = mask  # bad
        self.register_buffer("mask", mask, persistent=False)  # good

    def forward(self, x):
        t = x.shape[1]
        mask = self.mask[:t, :t].to(x.device)  # bad: sent-again
        mask = self.mask[:t, :t]  # good
        return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]

model = nn.Sequential(*[Causal() for _ in range(4)]).cuda()
opt = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(32, 256, 256, device="cuda")
for step in range(100):
    with torch.autocast("cuda", torch.bfloat16):
        loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
