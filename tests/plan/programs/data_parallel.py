# DataParallel over the GPUs that there are
import torch
from torch import nn

device = torch.device("cuda:0")
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    model = nn.DataParallel(model)
model.to(device)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    loss = model(torch.rand(64, 256).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
