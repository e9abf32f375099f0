# a benchmark: forward and backward with events, nothing is updated
import time

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).cuda()
x = torch.rand(8, 3, 32, 32, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for name in ("warm-up", "measured"):
    begin = time.perf_counter()
    start.record()
    for _ in range(5):
        model.zero_grad()
        model(x).sum().backward()
    end.record()
    torch.cuda.synchronize()
    print(name, start.elapsed_time(end) / 5, f"{8 * 5 / (time.perf_counter() - begin):.1f} img/s")
