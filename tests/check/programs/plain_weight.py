import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.gain = torch.ones(64, device="cuda", requires_grad=True)  # bad
        self.gain = nn.Parameter(torch.ones(64))  # good

    def forward(self, x):
        return self.linear(x) * self.gain


model = Scaled().to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
# bad: untrained-parameters
