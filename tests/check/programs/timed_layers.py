import time
import torch
from torch import nn

def benchmark(layer, x, repeats=50):
    for _ in range(5):
        layer(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        layer(x)
    torch.cuda.synchronize()  # good
    seconds = (time.perf_counter() - start) / repeats  # bad: timed-without-synchronize
    seconds = (time.perf_counter() - start) / repeats  # good
    return seconds * 1e3

with torch.no_grad():
    x = torch.randn(64, 1024, 768, device="cuda", dtype=torch.float16)
    for name, layer in {
        "linear": nn.Linear(768, 3072),
        "norm": nn.LayerNorm(768),
        "gelu": nn.GELU(),
    }.items():
        layer = layer.to("cuda", torch.float16)
        print(f"{name:10} {benchmark(layer, x):.3f} ms")
