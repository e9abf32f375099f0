# second derivatives: an inner step by autograd.grad, an outer one by Adam
import torch
from torch import nn

net = nn.Linear(8, 1).cuda()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for episode in range(5):
    outer = 0.0
    for task in range(3):
        x, y = torch.rand(10, 8, device="cuda"), torch.rand(10, 1, device="cuda")
        weights = list(net.parameters())
        for _ in range(2):
            loss = nn.functional.mse_loss(nn.functional.linear(x, *weights), y)
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            weights = [w - 0.01 * g for w, g in zip(weights, grads)]
        outer = outer + nn.functional.mse_loss(nn.functional.linear(x, *weights), y)
    optimizer.zero_grad()
    outer.backward()
    optimizer.step()
    if episode % 2 == 0:
        print(episode, float(outer))
