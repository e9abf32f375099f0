"""pyro: variational inference and Hamiltonian Monte Carlo: python pyro_inference.py cuda.

Random numbers are a card's own, so that the answers agree in what they find, not in their digits.
"""

import json
import sys

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal

device = sys.argv[1]
pyro.set_rng_seed(0)
x = torch.randn(200, 2).to(device)
y = x @ torch.tensor([1.0, -2.0]).to(device)


def model(x, y):
    weights = pyro.sample("weights", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("samples", len(x)):
        pyro.sample("y", dist.Normal(x @ weights, 0.1), obs=y)


torch.set_default_device(device)
guide = AutoDiagonalNormal(model)
inference = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
for _ in range(150):
    inference.step(x, y)
chain = MCMC(NUTS(model), num_samples=20, warmup_steps=10, disable_progbar=True)
chain.run(x, y)
sampled = chain.get_samples()["weights"]
found = torch.stack([guide.median()["weights"], sampled.mean(0)])
rounded = (found * 10).round() / 10
print(json.dumps({"numbers": rounded.flatten().tolist(), "device": sampled.device.type}))
