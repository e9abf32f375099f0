# a diffusion model: random times, an average of the weights, samples at the end
import copy

import torch
from torch import nn

T = 20
beta = torch.linspace(1e-4, 0.02, T).cuda()
alpha_bar = torch.cumprod(1 - beta, 0)
net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1)).cuda()
ema = copy.deepcopy(net).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(net.parameters(), 2e-4)
for step in range(5):
    x, t = torch.rand(8, 3, 16, 16, device="cuda"), torch.randint(0, T, (8,), device="cuda")
    noise, a = torch.randn_like(x), alpha_bar[t].view(-1, 1, 1, 1)
    noisy = a.sqrt() * x + (1 - a).sqrt() * noise
    time = (t / T).view(-1, 1, 1, 1).expand(-1, 1, 16, 16)
    loss = nn.functional.mse_loss(net(torch.cat([noisy, time], 1)), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for e, p in zip(ema.parameters(), net.parameters()):
            e.mul_(0.999).add_(p, alpha=0.001)
    print(step, loss)
