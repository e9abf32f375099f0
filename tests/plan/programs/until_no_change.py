"""Gradient descent until the loss no longer changes, read by float() from the host."""

import torch

model = torch.nn.Linear(100, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(500, 100).cuda()
before, now, steps = float("inf"), 0.0, 0
while abs(before - now) > 1e-6 and steps < 1000:
    before = now
    loss = (model(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    now = float(loss.detach().cpu())
    steps += 1
    if loss.cpu().item() > 100:
        print(f"{loss.cpu().item():.3f}")
