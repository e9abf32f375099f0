# the learning rate and the optimizer's state follow values; a class-balanced loss by counts
import torch
from torch import nn

model = nn.Linear(16, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
previous = None
for step in range(8):
    x, y = torch.rand(32, 16).cuda(), torch.randint(0, 4, (32,)).cuda()
    counts = torch.bincount(y, minlength=4).clamp(min=1)
    loss = nn.functional.cross_entropy(model(x), y, weight=counts.sum() / counts)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if previous is not None and loss.item() > previous:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    previous = loss.item()
    tops = model(x).topk(2, dim=1)[1].t().eq(y.view(1, -1).expand(2, -1))
    print([tops[:k].reshape(-1).float().sum(0).mul_(100.0 / 32).item() for k in (1, 2)])
