# two optimizers: a GAN, whose step is one round
import torch
from torch import nn


class Generator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.ConvTranspose2d(100, 64, 4), nn.BatchNorm2d(64), nn.ReLU(),
                         nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())  # fmt: skip


class Discriminator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 1, 4),
                         nn.Sigmoid())  # fmt: skip


def weights_init(m):
    if "Conv" in type(m).__name__:
        nn.init.normal_(m.weight, 0.0, 0.02)


G, D = Generator().cuda(), Discriminator().cuda()
G.apply(weights_init), D.apply(weights_init)
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCELoss()
for i in range(8):
    D.zero_grad()
    real = torch.rand(16, 3, 8, 8, device="cuda")
    label = torch.full((16,), 1.0, device="cuda")
    loss_real = criterion(D(real).view(-1), label)
    loss_real.backward()
    fake = G(torch.randn(16, 100, 1, 1, device="cuda"))
    loss_fake = criterion(D(fake.detach()).view(-1), label.fill_(0.0))
    loss_fake.backward()
    opt_d.step()
    G.zero_grad()
    loss = criterion(D(fake).view(-1), label.fill_(1.0))
    loss.backward()
    opt_g.step()
    print("[%d] D: %.4f G: %.4f" % (i, loss_real.item() + loss_fake.item(), loss.item()))
