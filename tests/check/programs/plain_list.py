import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.blocks = [nn.Linear(128, 128).cuda() for _ in range(3)]  # bad: untrained-parameters
        self.blocks = nn.ModuleList([nn.Linear(128, 128) for _ in range(3)])  # good
        self.last = nn.Linear(128, 10)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = F.relu(block(x))
        return self.last(x)


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(64, 64, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
for step in range(100):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
