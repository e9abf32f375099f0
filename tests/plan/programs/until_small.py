# a loop that ends when the loss is small
import torch
from torch import nn

model = nn.Linear(8, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.rand(32, 8, device="cuda"), torch.rand(32, 1, device="cuda")
loss = nn.functional.mse_loss(model(x), y)
while loss.item() > 1e-3:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
