# with: 2 ranks
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = DistributedDataParallel(nn.Linear(64, 8).to(device), device_ids=[device.index])
settings = [0.1] if dist.get_rank() == 0 else [None]
dist.broadcast_object_list(settings)
optimizer = torch.optim.SGD(model.parameters(), lr=settings[0])
x = torch.randn(16, 64, device=device)
for step in range(20):
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    if dist.get_rank() == 0:  # bad
        dist.broadcast(mean, 0)  # bad: collective-order
    dist.all_reduce(mean)  # bad
    dist.all_reduce(mean)  # good
