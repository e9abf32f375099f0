"""gpytorch: exact Gaussian process regression: python gpytorch_regression.py cuda."""

import json
import sys

import gpytorch
import torch

device = sys.argv[1]
x = torch.linspace(0, 1, 30).to(device)
y = torch.sin(6 * x)


class Process(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
process = Process(likelihood).to(device)
optimizer = torch.optim.Adam(process.parameters(), lr=0.1)
likely = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)
numbers = []
for _ in range(10):
    optimizer.zero_grad()
    loss = -likely(process(x), y)
    loss.backward()
    optimizer.step()
    numbers.append(loss.item())
process.eval(), likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var():
    found = likelihood(process(torch.linspace(0, 1, 5).to(device)))
numbers += [*found.mean.tolist(), *found.variance.tolist()]
print(json.dumps({"numbers": numbers, "device": found.mean.device.type}))
