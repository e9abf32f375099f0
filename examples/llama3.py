"""Llama 3 in plain PyTorch: sharded, tensor parallel and in a pipeline, as its arguments say.

  anydevice run --gpus 2 torchrun --nproc-per-node 2 examples/llama3.py
  anydevice plan --nodes 16 --gpus 8 --gpu h100-sxm torchrun examples/llama3.py --model 8b

The first trains a toy on two virtual GPUs; the second says what 8B takes on 128 H100, and how long
a step is. --tp splits each layer over GPUs, --pp the layers, --cp each text, --replicate the groups
of shards (HSDP); what is left of the world shards the weights (FSDP2). With --experts, a router
sends each token to two of several feed-forward layers, and --ep spreads these over GPUs.
--checkpoint keeps fewer activations, --compile compiles each block.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

aten = torch.ops.aten
COSTLY = {  # what selective checkpointing keeps, besides every second product
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


@dataclass(frozen=True)
class Size:
    """The sizes that Meta published; the toy's are ours."""

    width: int
    layers: int
    heads: int
    groups: int = 8  # of keys and values
    scale: float = 1.3  # of the feed-forward layers
    words: int = 128256
    multiple: int = 1024

    @property
    def hidden(self) -> int:
        """The width of the feed-forward layers."""
        wanted = int(self.scale * int(2 * 4 * self.width / 3))
        return self.multiple * -(-wanted // self.multiple)


SIZES = {
    "toy": Size(64, 4, 8, groups=4, words=256, multiple=32),
    "8b": Size(4096, 32, 32),
    "70b": Size(8192, 80, 64, multiple=4096),
    "405b": Size(16384, 126, 128, scale=1.2, multiple=4096),
}


# ---- the model ----


def rotations(head: int, length: int, device: torch.device) -> Tensor:
    """The angles' cosines and sines by position, as complex numbers in pairs."""
    rates = 500000.0 ** (-torch.arange(0, head, 2, device=device).float() / head)
    angles = torch.outer(torch.arange(length, device=device).float(), rates)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Queries or keys, turned by their positions."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turns[: x.size(1), None].unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(x)


class Attention(nn.Module):
    """Causal attention; several heads share keys and values."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.wq = nn.Linear(size.width, size.heads * self.head, bias=False)
        self.wk = nn.Linear(size.width, size.groups * self.head, bias=False)
        self.wv = nn.Linear(size.width, size.groups * self.head, bias=False)
        self.wo = nn.Linear(size.heads * self.head, size.width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        q, k, v = (w(x).unflatten(-1, (-1, self.head)) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = (each.repeat_interleave(q.size(2) // k.size(2), dim=2) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(heads.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two layers, the first of them gated."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1 = nn.Linear(size.width, size.hidden, bias=False)
        self.w2 = nn.Linear(size.hidden, size.width, bias=False)
        self.w3 = nn.Linear(size.width, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """A router, and this rank's experts: a token goes to the ranks that have its two."""

    def __init__(self, size: Size, count: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.count, self.group = count, group
        self.router = nn.Linear(size.width, count, bias=False)
        here = range(count // group.size())
        self.layers = nn.ModuleList(FeedForward(size) for _ in here)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        shares, chosen = self.router(x).softmax(-1).topk(2)
        by_expert = chosen.flatten().argsort(stable=True)
        leaving = torch.bincount(chosen.flatten(), minlength=self.count)
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving, group=self.group)
        there, here = (n.view(self.group.size(), -1).sum(1).tolist() for n in (leaving, arriving))
        arrived = self._sent(x.flatten(0, 1)[by_expert // 2], there, here)
        back = self._sent(self._by_each(arrived, arriving.tolist()), here, there)
        placed = torch.empty_like(back).index_copy(0, by_expert, back)
        return (placed.view(*x.shape[:2], 2, -1) * shares[..., None]).sum(2).type_as(x)

    def _sent(self, tokens: Tensor, there: list[int], here: list[int]) -> Tensor:
        """What all ranks send to this one, for so many that it sends to each."""
        return all_to_all_single_autograd(tokens, here, there, self.group)

    def _by_each(self, tokens: Tensor, counts: list[int]) -> Tensor:
        """Tokens come by rank, then by expert; each expert takes its own from all ranks."""
        parts = list(tokens.split(counts))
        for n, layer in enumerate(self.layers):
            mine = slice(n, None, len(self.layers))
            parts[mine] = layer(torch.cat(parts[mine])).split(counts[mine])
        return torch.cat(parts)


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to what it is given."""

    def __init__(self, size: Size, experts: int, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.attention = Attention(size)
        self.ffn_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.ffn = Experts(size, experts, group) if experts else FeedForward(size)
        self.checkpointing = {}  # how the block is checkpointed, if it is

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        if self.checkpointing:
            return checkpoint(self.layers, x, turns, **self.checkpointing)
        return self.layers(x, turns)

    def layers(self, x: Tensor, turns: Tensor) -> Tensor:
        """The same without checkpointing."""
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    """Llama 3, or one stage of it: the first has the embedding, the last the output."""

    def __init__(
        self,
        size: Size,
        length: int,
        layers: range,
        experts: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        last = size.layers - 1
        self.size, self.length = size, length
        self.words = nn.Embedding(size.words, size.width) if 0 in layers else None
        self.blocks = nn.ModuleDict({str(n): Block(size, experts, group) for n in layers})
        self.norm = nn.RMSNorm(size.width, eps=1e-5) if last in layers else None
        self.output = nn.Linear(size.width, size.words, bias=False) if last in layers else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens to scores; between stages, (batch, length, width)."""
        x = self.words(x) if self.words else x
        for block in self.blocks.values():
            x = block(x, self.turns)
        x = self.norm(x) if self.norm else x
        return self.output(x) if self.output else x

    def materialise(self, device: torch.device) -> None:
        """Memory and first values for what was made on the meta device."""
        self.to_empty(device=device)
        self.turns = rotations(self.size.width // self.size.heads, self.length, device)
        for name, weight in self.named_parameters():
            if "norm" in name:
                nn.init.ones_(weight)
            else:
                nn.init.trunc_normal_(weight, std=0.02)


# ---- parallel and sharded ----


def split_layers(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallel: each GPU has some heads and some of the hidden width."""
    rows = {"output_layouts": Shard(1)}
    if model.words:
        split = RowwiseParallel(input_layouts=Replicate(), **rows)
        parallelize_module(model, mesh, {"words": split})
    if model.output:
        whole = ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        )
        parallelize_module(model, mesh, {"norm": SequenceParallel(), "output": whole})
    for block in model.blocks.values():
        gather = {"desired_input_layouts": (Replicate(), None)}
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(Shard(1), None), **gather),
            "attention.wo": RowwiseParallel(**rows),
            "ffn_norm": SequenceParallel(),
        }
        columns = ["attention.wq", "attention.wk", "attention.wv"]
        sparse = isinstance(block.ffn, Experts)  # which take each GPU's part of the texts
        layout = Shard(1) if sparse else Replicate()
        plan["ffn"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(layout,), use_local_output=True
        )
        if sparse:
            plan["ffn.router"] = SequenceParallel(use_local_output=True)
        else:
            plan["ffn.w2"] = RowwiseParallel(**rows)
            columns += ["ffn.w1", "ffn.w3"]
        plan |= {name: ColwiseParallel() for name in columns}
        parallelize_module(block, mesh, plan)


def selective() -> tuple:
    """Keeps every second product and what is costly; all else is computed again."""
    products = {False: 0, True: 0}

    def policy(context, op, *arguments: object, **options: object) -> CheckpointPolicy:
        if op is aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2
        else:
            kept = op in COSTLY
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def keep_less(model: Llama, how: str) -> None:
    """Activation checkpointing of each block."""
    options = {"use_reentrant": False}
    if how == "selective":
        options["context_fn"] = selective
    for block in model.blocks.values():
        block.checkpointing = options


def shard(model: Llama, mesh: DeviceMesh, *, replicated: bool) -> None:
    """FSDP2 in bfloat16, or HSDP on a mesh of two dimensions: block by block.

    Experts are shards already: they are sharded over the ranks that have the same ones, and their
    gradients come from all.
    """
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.bfloat16)
    outer = ("replicate",) if replicated else ()
    for block in model.blocks.values():
        if isinstance(block.ffn, Experts):
            for layer in block.ffn.layers:
                fully_shard(layer, mesh=mesh[(*outer, "same_experts")], mp_policy=policy)
                layer.set_gradient_divide_factor(float(mesh["fsdp"].size()))
        fully_shard(block, mesh=mesh[(*outer, "fsdp")], mp_policy=policy)
    fully_shard(model, mesh=mesh[(*outer, "fsdp")], mp_policy=policy)


def stage_of(options: argparse.Namespace, number: int, stages: int, mesh: DeviceMesh) -> Llama:
    """The stage's layers, on the meta device until they are sharded."""
    size = SIZES[options.model]
    ends = [round(size.layers * n / stages) for n in range(stages + 1)]
    layers = [range(*span) for span in pairwise(ends)][number]
    group = mesh["experts"].get_group() if options.experts else None
    with torch.device("meta"):
        model = Llama(size, options.length, layers, options.experts, group)
    if options.tp > 1:
        split_layers(model, mesh["tp"])
    if options.checkpoint != "none":
        keep_less(model, options.checkpoint)
    if options.compile:
        for block in model.blocks.values():
            block.compile()
    shard(model, mesh, replicated=options.replicate > 1)
    model.materialise(torch.device("cuda", torch.cuda.current_device()))
    return model.train()


# ---- training ----


def loss_of(scores: Tensor, words: Tensor) -> Tensor:
    """The mean loss of saying each next word."""
    return F.cross_entropy(scores.flatten(0, 1).float(), words.flatten())


def batches(options: argparse.Namespace, part: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Texts that count on from a random word, others on each part of the data."""
    generator = torch.Generator().manual_seed(part)
    words = SIZES[options.model].words
    while True:
        starts = torch.randint(words, (options.batch, 1), generator=generator)
        text = (starts + torch.arange(options.length + 1)) % words
        yield text[:, :-1].cuda(), text[:, 1:].cuda()


class Pipeline:
    """The stages of this rank, and the schedule by which micro-batches pass through them."""

    def __init__(self, options: argparse.Namespace, mesh: DeviceMesh) -> None:
        group, here = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
        kind = schedules.get_schedule_class(options.schedule)
        several = issubclass(kind, schedules.PipelineScheduleMulti)
        stages = options.pp * (options.virtual if several else 1)
        mine = range(here, stages, options.pp)
        if options.schedule == "ZBVZeroBubble":  # goes down one side of a V and up the other
            mine = (here, stages - 1 - here)
        self.models = [stage_of(options, number, stages, mesh) for number in mine]
        device = torch.device("cuda", torch.cuda.current_device())
        parts = [
            PipelineStage(model, number, stages, device, group=group)
            for model, number in zip(self.models, mine, strict=True)
        ]
        self.first, self.last = 0 in mine, stages - 1 in mine
        given = parts if several else parts[0]
        self.schedule = kind(given, options.microbatches, loss_fn=loss_of)

    def step(self, text: Tensor, words: Tensor) -> Tensor | None:
        """Forward and backward; the loss on the last stage."""
        losses: list[Tensor] = []
        inputs = (text,) if self.first else ()
        target = words if self.last else None
        self.schedule.step(*inputs, target=target, losses=losses if self.last else None)
        return torch.stack(losses).mean() if losses else None


class Whole:
    """The whole model on each rank, or its shards."""

    first = last = True

    def __init__(self, options: argparse.Namespace, mesh: DeviceMesh) -> None:
        self.models = [stage_of(options, 0, 1, mesh)]

    def step(self, text: Tensor, words: Tensor) -> Tensor:
        """Forward and backward; the loss."""
        loss = loss_of(self.models[0](text), words)
        loss.backward()
        return loss.detach()


def arguments() -> argparse.Namespace:
    """What the command asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SIZES, default="toy")
    parser.add_argument("--batch", type=int, help="of each part of the data")
    parser.add_argument("--length", type=int, help="of a text, in tokens")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--cp", type=int, default=1)
    parser.add_argument("--replicate", type=int, default=1)
    parser.add_argument("--experts", type=int, default=0)
    parser.add_argument("--ep", type=int, default=1)
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--virtual", type=int, default=2, help="stages of a rank, interleaved")
    parser.add_argument("--microbatches", type=int)
    parser.add_argument("--checkpoint", choices=("none", "selective", "full"))
    parser.add_argument("--compile", action="store_true", help="each block, by torch.compile")
    options = parser.parse_args()
    toy = options.model == "toy"
    options.batch = options.batch or (8 if toy else 1) * (options.pp if options.pp > 1 else 1)
    options.length = options.length or (32 if toy else 8192)
    options.microbatches = options.microbatches or options.batch
    options.checkpoint = options.checkpoint or ("none" if toy else "selective")
    return options


def mesh_of(options: argparse.Namespace) -> DeviceMesh:
    """The world's ranks by what each dimension shares, and the dimensions that belong together."""
    fixed = options.pp * options.replicate * options.ep * options.cp * options.tp
    sizes = {
        "pp": options.pp,
        "replicate": options.replicate,
        "shard": dist.get_world_size() // fixed,
        "ep": options.ep,
        "cp": options.cp,
        "tp": options.tp,
    }
    mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    mesh["replicate", "shard", "ep"]._flatten("data")  # with separate texts
    mesh["shard", "ep", "cp"]._flatten("fsdp")
    if options.experts:
        mesh["ep", "tp"]._flatten("experts")
        mesh["shard", "cp"]._flatten("same_experts")
    return mesh


def around(options: argparse.Namespace, mesh: DeviceMesh, buffers: list[Tensor]) -> ExitStack:
    """The context of a step: each rank of `cp` has a part of these buffers, along the text."""
    stack = ExitStack()
    if options.tp > 1:
        stack.enter_context(loss_parallel())
    if options.cp > 1:
        along = [int(buffer.dtype == torch.int64) for buffer in buffers]  # texts: (batch, length)
        stack.enter_context(
            context_parallel(
                mesh["cp"],
                buffers=buffers,
                buffer_seq_dims=along,
                no_restore_buffers={b for b in buffers if b.dtype == torch.int64},
            )
        )
    return stack


def main() -> None:
    """Trains, and prints the loss and the peak memory of each rank."""
    options = arguments()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    mesh, rank = mesh_of(options), dist.get_rank()
    torch.manual_seed(0)
    part = mesh["data"].get_local_rank()
    training = (Pipeline if options.pp > 1 else Whole)(options, mesh)
    weights = [weight for model in training.models for weight in model.named_parameters()]
    spread = [weight for name, weight in weights if ".layers." in name]  # experts
    dense = [weight for name, weight in weights if ".layers." not in name]
    groups = [{"params": group} for group in (dense, spread) if group]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)
    texts = batches(options, part)
    says = part == mesh["tp"].get_local_rank() == mesh["cp"].get_local_rank() == 0
    for step in range(options.steps):
        text, words = next(texts)
        turns = [model.turns for model in training.models]
        with around(options, mesh, [text, words, *turns]):
            loss = training.step(text, words)
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None and step % 5 == 4 and says:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    print(f"rank {rank}: peak memory {peak:,} bytes", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
