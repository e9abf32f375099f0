"""What would help any program: changes around it are run, changes of its code are estimated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch

from anydevice.plan.hollow import blocks
from anydevice.plan.hollow.blocks import Block
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.remedies.search import PARTS, Remedies, Remedy
from anydevice.plan.subjects import Subject
from anydevice.plan.time.work import Work

SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"
ALLOWED = "allow flash and memory-efficient attention (torch.nn.attention.sdpa_kernel)"
NOTE = (
    "Estimated rows (~) are what is left if all that the change can free is freed; the others were "
    "run. A smaller batch in parts takes the steps' time, with one optimizer step for each part."
)
SMALL_CHANGE = 0.01
HALF_OF_STEP = 0.5  # of a step's products in float32, from which on half precision is suggested


def remedies_for_program(
    subject: Subject, gpus: HollowGPUs, run: HollowRun, batch_arg: str | None
) -> Remedies:
    """Runs the program with what needs no change of its code; estimates what does.

    >>> remedies_for_program(program, HollowGPUs("t4"), run, "--batch-size").best  # doctest: +SKIP

    Args:
        subject: The program.
        gpus: The GPUs that it was run on.
        run: That run.
        batch_arg: What sets its batch size, if that is known.
    """
    as_it_is = Remedy("as it is", "", run.gpus, run.device_bytes, run.fits, run.predicted())
    rows = [*_tried(subject, gpus, run, batch_arg), *_estimated(run)]
    rows.sort(key=lambda row: (not row.fits, row.estimated, row.card_seconds))
    return Remedies(gpus.kind, as_it_is, rows, NOTE)


# ---- what needs no change of the code ----


@dataclass(frozen=True)
class WithSettings:
    """A program that begins with settings of PyTorch's allocator."""

    program: Callable[[], object]
    settings: str

    def __call__(self) -> object:
        """Sets them in this process, and runs the program."""
        os.environ[SETTINGS] = self.settings
        torch.cuda.memory._set_allocator_settings(self.settings)
        return self.program()


@dataclass(frozen=True)
class WithFusedAttention:
    """A program that cannot rule out the fused kernels of attention."""

    program: Callable[[], object]

    def __call__(self) -> object:
        """Runs the program, with all kernels allowed."""
        with ExitStack() as stack:
            for kernel in ("flash", "mem_efficient", "cudnn"):
                allow = f"_set_sdp_use_{kernel}"
                getattr(torch._C, allow)(True)
                stack.enter_context(patch.object(torch._C, allow, lambda enabled: None))
            return self.program()


def _tried(
    subject: Subject, gpus: HollowGPUs, run: HollowRun, batch_arg: str | None
) -> Iterator[Remedy]:
    given = os.environ.get(SETTINGS, "")
    fewer_gaps = run.allocated + run.context.low <= run.card.memory
    if fewer_gaps and "expandable_segments" not in given:
        program = WithSettings(subject, ",".join(filter(None, (given, EXPANDABLE))))
        yield _run("expandable segments", f"{SETTINGS}={EXPANDABLE}", gpus, program, subject.name)
    if "math" in run.attention:  # where the program rules the others out
        found = _run("fused attention", ALLOWED, gpus, WithFusedAttention(subject), subject.name)
        if "math" not in found.attention:
            yield found
    if batch_arg and (batch := subject.batch or run.samples):
        yield from _in_parts(subject, gpus, batch, batch_arg)


def _in_parts(subject: Subject, gpus: HollowGPUs, batch: int, batch_arg: str) -> Iterator[Remedy]:
    """Ever smaller batches, up to the first that fits."""
    for parts in PARTS:
        if batch % parts:
            return
        how = f"{batch_arg} {batch // parts}, {parts} backward passes before each step"
        smaller = subject.with_batch(batch // parts)
        found = _run(f"batch in {parts} parts", how, gpus, smaller, subject.name)
        if found.time:
            times = {n: getattr(found.time, n) * parts for n in ("seconds", "low", "high", "busy")}
            found = replace(found, time=replace(found.time, **times))
        yield found
        if found.fits:
            return


def _run(name: str, how: str, gpus: HollowGPUs, program: Callable[[], object], of: str) -> Remedy:
    try:
        run = gpus.run(program, of)
    except CannotPlanError as error:
        return Remedy(name, how, gpus.count, None, False, None, str(error))
    figures = (run.device_bytes, run.fits, run.predicted())
    return Remedy(name, how, gpus.count, *figures, attention=run.attention)


# ---- what needs one ----


def _estimated(run: HollowRun) -> Iterator[Remedy]:
    held: dict[str, int] = {}
    there = blocks.peak(run.blocks, run.device).blocks
    for block in there:
        held[block.category] = held.get(block.category, 0) + block.bytes
    activations = [block for block in there if block.category == blocks.ACTIVATIONS]
    changes = (
        ("checkpointing", "torch.utils.checkpoint around each layer", _checkpointing(activations)),
        ("half precision", "torch.autocast around the forward pass", _half(held, run.work)),
        ("8-bit optimizer", "bitsandbytes.optim, 2 bytes of state a weight", _eight_bit(held)),
        (
            "optimizer state on the host",
            "FSDP2 with CPUOffloadPolicy, or DeepSpeed",
            held.get(blocks.OPTIMIZER, 0),
        ),
    )
    for name, how, saved in changes:
        if saved > 0.02 * run.reserved:
            left = run.device_bytes - saved
            surely = left - run.context.value + run.context.high <= run.card.memory
            yield Remedy(name, how, run.gpus, left, surely, None, estimated=True)


def _checkpointing(activations: list[Block]) -> int:
    """Of the layers in a list (`layers.0`, `layers.1` …): all but one, and each one's input.

    The input is taken to be as large as the smallest that the layer keeps, except for small change.
    """
    lists: dict[str, dict[str, list[int]]] = {}
    for block in activations:
        parts = block.module.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        if at is not None:
            layers = lists.setdefault(".".join(parts[:at]), {})
            layers.setdefault(parts[at], []).append(block.bytes)
    saved = 0
    for layers in lists.values():
        held = [sum(sizes) for sizes in layers.values()]
        inputs = [
            min(size for size in sizes if size > SMALL_CHANGE * sum(sizes))
            for sizes in layers.values()
        ]
        saved += max(0, sum(held) - max(held) - sum(inputs))
    return saved


def _half(held: Mapping[str, int], work: Work | None) -> int:
    """Half of what the passes hold, if the products are in float32, less the weights' copies."""
    flops: dict[str, float] = {}
    for op in work.ops if work else ():
        for product in op.products:
            flops[op.unit] = flops.get(op.unit, 0.0) + product.flops
    single = flops.get("float32", 0.0) + flops.get("tf32", 0.0)
    if not single or single < HALF_OF_STEP * sum(flops.values()):
        return 0
    passes = held.get(blocks.ACTIVATIONS, 0) + held.get(blocks.BACKWARD, 0)
    return (passes - held.get(blocks.PARAMETERS, 0)) // 2


def _eight_bit(held: Mapping[str, int]) -> int:
    """Adam's two numbers a weight in one byte each, for weights of four bytes."""
    state, weights = held.get(blocks.OPTIMIZER, 0), held.get(blocks.PARAMETERS, 0)
    return state * 3 // 4 if state > 1.5 * weights else 0
