"""MPT as llm-foundry trains it for the tables of scripts/train/benchmarking: FSDP1, flash attention.

FULL_SHARD with bfloat16 parameters and reductions (PURE), one unit for each block, each micro-batch
reduced, gradients clipped, an optimizer that steps one parameter after the other. The source's fused
cross entropy is PyTorch's own here, on bfloat16 scores.
"""

from __future__ import annotations

import argparse
import functools
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WORDS = 50368
SIZES = {  # width, heads, layers: scripts/train/yamls/pretrain
    "350m": (1024, 16, 24),
    "760m": (1536, 12, 24),
    "1b": (2048, 16, 24),
    "3b": (2560, 20, 32),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 56, 48),
    "70b": (8192, 64, 80),
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wqkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.wqkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class MPT(nn.Module):
    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        width, heads, layers = SIZES[size]
        self.wte, self.wpe = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm_f = nn.LayerNorm(width)

    def forward(self, words: Tensor) -> Tensor:
        x = self.wte(words) + self.wpe(torch.arange(words.size(1), device=words.device))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm_f(x), self.wte.weight)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SIZES, required=True)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--micro", type=int, required=True, help="texts in a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--checkpoint", action="store_true", help="compute each block again")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = MPT(args.model, args.length)
    half = torch.bfloat16
    network = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half, buffer_dtype=half),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST,
        device_id=torch.cuda.current_device(),
        param_init_fn=functools.partial(nn.Module.to_empty, device="cuda", recurse=False),
        limit_all_gathers=True,
        use_orig_params=True,
    )
    if args.checkpoint:
        apply_activation_checkpointing(network, check_fn=lambda part: isinstance(part, Block))
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=2e-4, betas=(0.9, 0.95), weight_decay=0.0, foreach=False
    )
    text = torch.zeros(args.micro, args.length, dtype=torch.int64)
    while True:
        for _ in range(args.accumulate):
            words = text.cuda()
            scores = network(words)
            loss = F.cross_entropy(scores.flatten(0, 1), words.flatten())
            (loss / args.accumulate).backward()
        network.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
