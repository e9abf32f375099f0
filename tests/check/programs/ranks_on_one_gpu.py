# with: 2 ranks
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
device = torch.device("cuda", 0)  # bad
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # good
torch.cuda.set_device(device)
model = DistributedDataParallel(nn.Linear(64, 8).to(device), device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 64, device=device)
for step in range(20):
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
# bad: ranks-share-a-gpu
