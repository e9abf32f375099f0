import torch
from torch import nn
from torch.nn import functional as F

backbone = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6)]).cuda()
head = nn.Linear(512, 10).cuda()
backbone.requires_grad_(False)  # good
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)  # bad: unused-gradients
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)  # good
x, y = torch.randn(64, 512, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
for step in range(100):
    loss = F.cross_entropy(head(backbone(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
