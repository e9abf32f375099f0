import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

for step in range(1000):
    x = torch.randn(1024, 512)  # bad
    y = torch.randint(0, 16, (1024,))  # bad
    x, y = x.to(device), y.to(device)  # bad: made-on-host
    x = torch.randn(1024, 512, device=device)  # good
    y = torch.randint(0, 16, (1024,), device=device)  # good
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
