# checks of the loss and the gradients before the first step
import math
import sys

import torch
from torch import nn

model = nn.Linear(32, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    loss = model(torch.rand(16, 32, device="cuda")).square().mean()
    assert torch.isfinite(loss).all(), f"loss is {loss.item()}"
    if torch.isnan(loss):
        print("Loss is NaN, stopping training")
        sys.exit(1)
    if not math.isfinite(loss.item()):
        raise FloatingPointError(loss.item())
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        print("skipped")
        optimizer.zero_grad()
        continue
    if norm > 100:
        print(f"large norm {norm:.2f}")
    optimizer.step()
