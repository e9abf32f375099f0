"""Tutorial 4, dropout that keeps a seed instead of a mask: tl.rand."""

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.jit
def dropout_kernel(x_ptr, out_ptr, count, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    x = tl.load(x_ptr + offsets, mask=inside)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=inside)


def dropout(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    out = torch.empty_like(x)
    dropout_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), p, seed, BLOCK=256)
    return out


x = torch.randn(2000, device=DEVICE)
one, same, other = (dropout(x, 0.5, seed) for seed in (123, 123, 512))
torch.testing.assert_close(one, same, rtol=0, atol=0)
assert not torch.equal(one, other)
kept = one != 0
torch.testing.assert_close(one, torch.where(kept, 2 * x, 0.0))
assert 0.45 < kept.float().mean().item() < 0.55
