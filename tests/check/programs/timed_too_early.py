import time

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(10)]).cuda()
x = torch.randn(512, 2048, device="cuda")
with torch.no_grad():
    model(x)
    torch.cuda.synchronize()  # good
    start = time.perf_counter()
    for _ in range(10):
        model(x)
    torch.cuda.synchronize()  # good
    seconds = time.perf_counter() - start  # bad: timed-without-synchronize
    seconds = time.perf_counter() - start  # good
print(f"{seconds / 10 * 1e3:.2f} ms")
