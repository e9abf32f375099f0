import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU()) for _ in range(24)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # bad
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)  # good
x = torch.randn(128, 512, device="cuda")
for step in range(100):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()  # bad: optimizer-not-fused
    optimizer.step()  # good
