# with: 2 ranks
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
layers = [nn.Sequential(nn.Linear(4096, 4096), nn.ReLU()) for _ in range(4)]
network = nn.Sequential(*layers).to("cuda", torch.bfloat16)
network = DistributedDataParallel(network)  # bad
network = DistributedDataParallel(network, gradient_as_bucket_view=True)  # good
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
for step in range(1000):
    optimizer.zero_grad()
    network(x).square().mean().backward()  # bad: bucket-copies
    network(x).square().mean().backward()  # good
    optimizer.step()
