# layers by hand on two GPUs
import torch
from torch import nn


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(256, 1024), nn.ReLU()).to("cuda:0")
        self.second = nn.Linear(1024, 10).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x.to("cuda:0")).to("cuda:1"))


model = Split()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(5):
    optimizer.zero_grad()
    outputs = model(torch.randn(64, 256))
    labels = torch.randn(64, 10).to(outputs.device)
    nn.functional.mse_loss(outputs, labels).backward()
    optimizer.step()
