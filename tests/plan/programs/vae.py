# torch.distributions: a variational autoencoder
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 400), nn.ReLU())
        self.mean, self.log_var = nn.Linear(400, 20), nn.Linear(400, 20)
        self.decoder = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784))

    def forward(self, x):
        h = self.encoder(x)
        posterior = Normal(self.mean(h), (0.5 * self.log_var(h)).exp())
        return self.decoder(posterior.rsample()), posterior


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = VAE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loss = 0
for batch in range(10):
    data = torch.rand(128, 784, device=device)
    optimizer.zero_grad()
    logits, posterior = model(data)
    prior = Normal(torch.zeros(20, device=device), torch.ones(20, device=device))
    reconstruction = torch.distributions.Bernoulli(logits=logits).log_prob(data.round()).sum()
    loss = kl_divergence(posterior, prior).sum() - reconstruction
    loss.backward()
    train_loss += loss.item()
    optimizer.step()
    print(f"batch {batch}: {loss.item() / len(data):.6f}")
print(f"average loss: {train_loss / 1280:.4f}")
