"""The same training in float32 and in mixed precision: its memory, and the loss it reaches.

anydevice run --gpu t4 examples/mixed_precision.py
"""

import torch
from torch import nn


def train(dtype, steps=30):
    """A small network on a small problem; returns its last loss and its most memory."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 1)
    )
    network.cuda()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    inputs = torch.randn(1024, 64, device="cuda")
    targets = inputs[:, :8].sum(1, keepdim=True)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        optimizer.zero_grad()
        # Inside, matrix products run in `dtype`; what needs the digits, such as the loss, does not.
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            outputs = network(inputs)
            loss = nn.functional.mse_loss(outputs, targets)
        scaler.scale(loss).backward()  # so that small gradients do not vanish in float16
        scaler.step(optimizer)
        scaler.update()
    parameter = next(network.parameters())
    print(
        f"{dtype!s:>14}  outputs {outputs.dtype!s:>14}  weights {parameter.dtype}  "
        f"loss {loss.item():.6f}  peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB"
    )


print(torch.cuda.get_device_name(), "- bfloat16 natively:", torch.cuda.is_bf16_supported(False))
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    train(dtype)
