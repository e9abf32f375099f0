"""Tutorial 7, functions of libdevice: asin, with the library found by Triton and by its path."""

from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def asin_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    x = tl.load(x_ptr + offsets, mask=inside)
    tl.store(y_ptr + offsets, libdevice.asin(x), mask=inside)


x = torch.rand(9843, device=DEVICE)
home = Path(triton.__file__).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
for options in ({}, {"extern_libs": {"libdevice": str(home)}}):
    y = torch.zeros_like(x)
    asin_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, y, x.numel(), BLOCK=1024, **options
    )
    torch.testing.assert_close(y, torch.asin(x))
