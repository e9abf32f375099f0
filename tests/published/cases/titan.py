"""torchtitan of December 2024 (commit 9dec370), with the model of examples/llama3.py.

What that trainer does otherwise than our example: RMSNorm in float32 out of single ops, rotations by
complex numbers, gradients clipped at 1.0, AdamW with foreach, the last block kept whole between the
passes, and network outputs left as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import llama3


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


class AdamW(torch.optim.AdamW):
    def __init__(self, groups: list, **options: object) -> None:
        super().__init__(groups, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)

    def step(self) -> None:
        weights = [weight for group in self.param_groups for weight in group["params"]]
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        super().step()


def rotations(head: int, length: int, device: torch.device) -> Tensor:
    return torch.view_as_complex(llama3_rotations(head, length, device))


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * turns[: x.size(1), None])
    return turned.flatten(-2).type_as(x)


def shard(model: llama3.Llama, mesh: object, *, replicated: bool) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    whole = mesh[("replicate", "fsdp") if replicated else ("fsdp",)]
    blocks = list(model.blocks.values())
    for block in blocks:
        last = block is blocks[-1]
        fully_shard(block, mesh=whole, mp_policy=policy, reshard_after_forward=not last)
    fully_shard(model, mesh=whole, mp_policy=policy)


llama3_rotations = llama3.rotations
nn.RMSNorm, torch.optim.AdamW = RMSNorm, AdamW
llama3.rotations, llama3.rotated, llama3.shard = rotations, rotated, shard
llama3.main()
