# x[mask] and what is not in it, masked_select and where
import torch
from torch import nn

net = nn.Linear(16, 16, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    x = torch.rand(33, 16, device="cuda")
    mask = x[:, 0] > 0.5
    y = torch.cat([net(x[mask]), net(x[~mask]) * 2])
    assert y.shape == x.shape
    rows, columns = torch.where(x > 0.9)
    loss = y.sum() + torch.masked_select(x, x > 0.9).sum() + x[rows, columns].sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
