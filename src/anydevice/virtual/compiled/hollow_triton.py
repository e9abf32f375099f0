"""A kernel that Triton compiled for the card, launched on a hollow GPU: reported, not run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from anydevice.virtual.compiled import driver, ir
from anydevice.virtual.compiled.launches import TRITON, Launch, Product, inside, report

KINDS = {"f16": "float16", "bf16": "bfloat16", "f32": "tf32", "f64": "float64", "i8": "int8"}


def launch(kernel: Any, grid: tuple[int, int, int], given: Any) -> None:
    """Reports a launch with its bytes, its products and what it takes of a multiprocessor."""
    driver.check_launch(grid, given)
    if 0 in grid:
        return
    source = kernel.src
    constant = {name for name, kind in source.signature.items() if kind == "constexpr"}
    named = dict(zip(source.fn.arg_names, given, strict=False))
    kept = {name: each for name, each in named.items() if name not in constant}
    tensors = {name: each for name in kept if (each := _tensor(kept[name])) is not None}
    if not tensors:
        return
    numbers = {n: each if isinstance(each, int | float) else None for n, each in kept.items()}
    done = _work(kernel.asm["ttir"], tuple(numbers.items()), grid)
    loaded, stored = (_within(tensors, part) for part in (done.loaded, done.stored))
    seen = bool(loaded or stored)
    first = next(iter(tensors.values()))
    report(
        Launch(
            kernel.name,
            first.get_device(),
            reads=tuple(tensors[name] for name in loaded) if seen else tuple(tensors.values()),
            writes=tuple(tensors[name] for name in stored) if seen else tuple(tensors.values()),
            bytes=sum((*loaded.values(), *stored.values()))
            if seen
            else float(sum(each.nbytes for each in tensors.values())),
            products=_products(done),
            host=inside() or TRITON,
            unit=_unit(done),
            fill=fill(kernel.metadata, kernel.n_regs, grid, first.get_device()),
        )
    )


@lru_cache(maxsize=4096)
def _work(text: str, numbers: tuple[Any, ...], grid: tuple[int, int, int]) -> ir.Work:
    return ir.work(text, dict(numbers), grid)


def _tensor(value: Any) -> Tensor | None:
    value = getattr(value, "base", value) if not isinstance(value, Tensor) else value
    return value if isinstance(value, Tensor) and value.is_cuda else None


def _within(tensors: dict[str, Tensor], moved: dict[str, float]) -> dict[str, float]:
    """Bytes of device memory: what is loaded again and again comes from the cache."""
    return {n: min(float(tensors[n].nbytes), size) for n, size in moved.items() if n in tensors}


def _products(done: ir.Work) -> tuple[Product, ...]:
    return tuple(
        Product(batch, m, n, k, "kernel", times)
        for (batch, m, n, k, _), times in done.products.items()
    )


def _unit(done: ir.Work) -> str:
    kinds = [key[4] for key in done.products]
    if not kinds:
        return "float32"
    return "float8" if kinds[0].startswith("f8") else KINDS.get(kinds[0], "float32")


def fill(metadata: Any, registers: int, grid: tuple[int, int, int], device: int) -> float:
    """The share of the card that the programs keep busy, in whole waves of them."""
    card: Any = torch.cuda.get_device_properties(device)
    threads = driver.WARP * metadata.num_warps
    blocks = min(
        card.max_threads_per_multi_processor // threads,
        driver.REGISTERS // max(1, registers * threads),
        card.shared_memory_per_multiprocessor // max(1, metadata.shared),
    )
    programs = grid[0] * grid[1] * grid[2]
    slots: int = card.multi_processor_count * max(1, min(blocks, 32))
    if programs >= slots:
        waves = -(-programs // slots)
        return programs / (waves * slots)
    return min(1.0, float(programs / card.multi_processor_count))
