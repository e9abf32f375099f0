"""Two networks trained side by side, a GPU for each, by one thread for each.

anydevice run --gpus 2 examples/two_networks_two_gpus.py
"""

import threading

import torch
from torch import nn


def train(name, device, width, results):
    """One network on one device: no line here mentions the other one."""
    torch.cuda.set_device(device)  # this thread's; "cuda" without a number is now this one
    generator = torch.Generator("cuda").manual_seed(0)
    network = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 1)).to("cuda")
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(40):
        x = torch.randn(64, 16, device="cuda", generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), x.square().sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
    results[name] = loss.item(), next(network.parameters()).device


results = {}
work = {"narrow": (0, 8), "wide": (1, 256)}
threads = [
    threading.Thread(target=train, args=(name, device, width, results))
    for name, (device, width) in work.items()
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

for name, (loss, device) in sorted(results.items()):
    peak = torch.cuda.max_memory_allocated(device) / 2**10
    print(f"{name:>6}  on {device}  loss {loss:8.3f}  peak memory {peak:7.1f} KiB")
print("the main thread's device is still", torch.cuda.current_device())

# What two networks on two GPUs share has to be brought together by hand.
first, second = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
print("first + second.to(first.device) is on", (first + second.to(first.device)).device)
