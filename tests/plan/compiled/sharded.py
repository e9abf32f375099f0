"""A small Llama on several ranks, compiled: `torchrun sharded.py ddp|tp|fsdp whole|blocks`."""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

WIDTH, WORDS = 256, 512


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            w(x).unflatten(-1, (-1, 64)).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


kind, what = sys.argv[1:]
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model: nn.Module = Net().to("cuda", torch.bfloat16)
if kind == "tp":
    mesh = dist.init_device_mesh("cuda", (dist.get_world_size(),))
    columns = {name: ColwiseParallel() for name in ("wq", "wk", "wv", "up")}
    for block in model.get_submodule("blocks"):
        parallelize_module(
            block, mesh, columns | {"wo": RowwiseParallel(), "down": RowwiseParallel()}
        )
if what == "blocks":
    for block in model.get_submodule("blocks"):
        block.compile(fullgraph=True)
if kind == "fsdp":
    for part in (*model.get_submodule("blocks"), model):
        fully_shard(part)
if kind == "ddp":
    model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
forward = torch.compile(model) if what == "whole" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(3):
    words = torch.randint(WORDS, (4, 128), device="cuda")
    loss = F.cross_entropy(forward(words).flatten(0, 1).float(), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
