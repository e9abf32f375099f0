# with: 2 ranks
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 64)
        self.first, self.second = nn.Linear(64, 8), nn.Linear(64, 8)

    def forward(self, x):
        x = self.body(x).relu()
        return self.first(x)  # bad
        return self.first(x) + self.second(x)  # good


dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = DistributedDataParallel(TwoHeads().to(device), device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 64, device=device)
for step in range(20):
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
# bad: unused-parameters
