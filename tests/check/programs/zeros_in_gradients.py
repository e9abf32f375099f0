import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 2048, device="cuda")
for step in range(100):
    optimizer.zero_grad(set_to_none=False)  # bad: zero-grad-fills
    optimizer.zero_grad()  # good
    loss = F.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
