import torch
from torch import nn
from torch.nn import functional as F


def make():
    return nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10)).cuda()


model = make()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
model = make()  # bad
x, y = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
for step in range(100):
    loss = F.cross_entropy(model(x), y)
    model.zero_grad()
    loss.backward()
    optimizer.step()  # bad: optimizer-without-gradients
    optimizer.step()  # good
