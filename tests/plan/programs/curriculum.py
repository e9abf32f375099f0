"""Counts before its first step, and makes its sequences longer once it has succeeded often."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("scale", torch.rand(4, 16))

    def forward(self, x):
        if self.scale[0, 0] == 0:
            self.scale = torch.rand(4, 16, device=x.device).double()
        return self.layer(x * self.scale[:1])


network = Network().cuda()
optimizer = torch.optim.Adam(network.parameters())
successes, length, positive = 0, 8, 0
for x in torch.rand(3, 4, 16):
    if network(x.cuda()).sum().item() > 0:
        positive += 1
for _ in range(10):
    loss = network(torch.rand(length, 16, device="cuda")).square().mean()
    loss.backward()
    if loss.item() < 0.1:
        successes += 1
    else:
        successes = 0
    if successes >= 3:
        length += 1
    optimizer.step()
    optimizer.zero_grad()
