# five steps of the critic for one of the generator, and a gradient penalty
import torch
from torch import autograd, nn

G = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)).cuda()
D = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).cuda()
opt_g = torch.optim.Adam(G.parameters(), lr=1e-4, betas=(0.0, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-4, betas=(0.0, 0.9))
for i in range(60):
    real, z = torch.rand(64, 32, device="cuda"), torch.randn(64, 16, device="cuda")
    fake = G(z).detach()
    alpha = torch.rand(64, 1, device="cuda")
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    out = D(mixed)
    grads = autograd.grad(out, mixed, torch.ones_like(out), create_graph=True, retain_graph=True)[0]
    loss_d = D(fake).mean() - D(real).mean() + 10 * ((grads.norm(2, dim=1) - 1) ** 2).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    if i % 5 == 4:
        opt_g.zero_grad()
        loss_g = -D(G(z)).mean()
        loss_g.backward()
        opt_g.step()
        print(f"[{i}] [D loss: {loss_d.item():f}] [G loss: {loss_g.item():f}]")
