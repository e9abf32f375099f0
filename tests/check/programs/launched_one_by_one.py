import torch
from torch import nn

device = torch.device("cuda")
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(24)]).to(device)
model = torch.compile(model, mode="reduce-overhead")  # good
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(64, 64, device=device)
for step in range(1000):
    optimizer.zero_grad()
    model(x).square().mean().backward()  # bad: launch-bound
    model(x).square().mean().backward()  # good
    optimizer.step()
