# gradient accumulation over many micro-batches
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
accumulate, running = 128, 0.0
for step in range(4 * accumulate):
    x, y = torch.rand(8, 256, device="cuda"), torch.randint(10, (8,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y) / accumulate
    loss.backward()
    running += loss.detach()
    if (step + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
        print("loss", running.item())
        running = 0.0
