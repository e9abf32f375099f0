import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 512, device=device)
y = torch.randint(0, 16, (256,), device=device)

for step in range(1000):
    optimizer.zero_grad()
    out = model(x)
    loss = sum(F.cross_entropy(out[i], y[i]) for i in range(256)) / 256  # bad: small-kernels
    loss = F.cross_entropy(out, y)  # good
    loss.backward()
    optimizer.step()
