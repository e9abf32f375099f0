import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 1000))
model[2] = nn.Linear(512, 10)  # good
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[2] = nn.Linear(512, 10).cuda()  # bad: untrained-parameters
x, y = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
for step in range(100):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
