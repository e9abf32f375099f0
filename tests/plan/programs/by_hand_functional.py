# gradients by torch.func, parameters that are made anew at each step
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

model = nn.Linear(16, 4).cuda()
params = {name: p.detach() for name, p in model.named_parameters()}


def loss_of(params, x, y):
    out = functional_call(model, params, (x.unsqueeze(0),))
    return nn.functional.cross_entropy(out, y.unsqueeze(0))


for step in range(6):
    x, y = torch.rand(8, 16, device="cuda"), torch.randint(4, (8,), device="cuda")
    each = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
    params = {name: p - 0.1 * each[name].mean(0) for name, p in params.items()}
print("done")
