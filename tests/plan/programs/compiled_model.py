# torch.compile of a model, whose weights are saved without the prefix
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)).cuda()
model = torch.compile(model, mode="max-autotune", fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for step in range(6):
    loss = model(torch.rand(32, 64, device="cuda")).logsumexp(1).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        unwrapped = model._orig_mod if hasattr(model, "_orig_mod") else model
        print(step, loss.item(), len(unwrapped.state_dict()))
