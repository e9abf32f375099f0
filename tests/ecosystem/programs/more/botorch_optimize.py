"""botorch: a step of Bayesian optimization: python botorch_optimize.py cuda."""

import json
import sys

import torch
from botorch.acquisition import LogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

device = sys.argv[1]
torch.manual_seed(0)
x = torch.rand(10, 2, dtype=torch.double).to(device)
y = 1 - (x - 0.5).norm(dim=-1, keepdim=True)
model = SingleTaskGP(x, y)
fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double).to(device)
numbers = []
for gain, points in (
    (LogExpectedImprovement(model, y.max()), 1),
    (qLogNoisyExpectedImprovement(model, x), 2),
):
    where, value = optimize_acqf(gain, bounds=bounds, q=points, num_restarts=2, raw_samples=8)
    numbers += [*where.flatten().tolist(), value.item()]
print(json.dumps({"numbers": numbers, "device": where.device.type}))
