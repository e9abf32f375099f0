"""Tutorial 1, vector addition: a mask for the last program, a grid from the configuration."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def add_kernel(left_ptr, right_ptr, out_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    left = tl.load(left_ptr + offsets, mask=inside)
    right = tl.load(right_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, left + right, mask=inside)


def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(left)
    assert left.device == right.device == out.device == DEVICE
    add_kernel[lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)](
        left, right, out, out.numel(), BLOCK=1024
    )
    return out


x, y = torch.rand(2, 9843, device=DEVICE)
print(f"difference: {(add(x, y) - (x + y)).abs().max().item()}")
torch.testing.assert_close(add(x, y), x + y, rtol=0, atol=0)
milliseconds = triton.testing.do_bench(lambda: add(x, y), warmup=1, rep=1)
