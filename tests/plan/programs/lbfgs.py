# L-BFGS with a line search, which branches on losses and slopes; derivatives of second order
import torch
from torch import nn

solution = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).cuda()
x = torch.rand(128, 1).cuda().requires_grad_()
t = torch.rand(128, 1).cuda().requires_grad_()
optimizer = torch.optim.LBFGS(
    solution.parameters(), max_iter=4, history_size=6, line_search_fn="strong_wolfe"
)


def slope(y, z):
    return torch.autograd.grad(y, z, torch.ones_like(y), create_graph=True)[0]


def closure():
    optimizer.zero_grad()
    u = solution(torch.cat([x, t], 1))
    residual = slope(u, t) + u * slope(u, x) - 0.01 * slope(slope(u, x), x)
    loss = residual.pow(2).mean()
    loss.backward()
    return loss


for step in range(10):
    loss = optimizer.step(closure)
    pairs = len(optimizer.state[optimizer._params[0]]["old_dirs"])
    assert pairs == min(6, 4 * (step + 1) - 1), pairs
    print(step, loss.item(), pairs)
