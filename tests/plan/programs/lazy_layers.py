# lazy layers get their shapes in the first step; an initialisation that looks at them before
import torch
from torch import nn

net = nn.Sequential(
    nn.LazyConv2d(16, 3, padding=1), nn.LazyBatchNorm2d(), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(10),
).to("cuda")  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(5):
    X, y = torch.randn(8, 1, 16, 16, device="cuda"), torch.randint(10, (8,), device="cuda")
    loss = nn.functional.cross_entropy(net(X), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
