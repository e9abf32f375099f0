# an optimizer that is no torch.optim.Optimizer
import torch
from torch import nn


class Lion:
    def __init__(self, params, lr=1e-4):
        self.params, self.lr = list(params), lr
        self.momentum = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self):
        for p, m in zip(self.params, self.momentum):
            p.add_((m * 0.9 + p.grad * 0.1).sign(), alpha=-self.lr)
            m.mul_(0.99).add_(p.grad, alpha=0.01)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
optimizer = Lion(model.parameters())
for _ in range(6):
    loss = model(torch.rand(16, 64, device="cuda")).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
