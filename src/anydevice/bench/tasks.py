"""What is measured: products of matrices, element-wise products, convolutions and transfers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from anydevice.bench.clock import Work

DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,  # the same tensors, multiplied with ten bits of mantissa
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
MATMULS = (1000, 2000, 4000, 10_000)  # sides of the matrices
PRODUCTS = (1000, 4000, 10_000)
CONVOLUTIONS = {  # images, channels in and out, side of the kernel and of an image
    "LeNet's first": (1000, 1, 6, 5, 28),
    "a ResNet's": (32, 64, 64, 3, 56),
}
LARGE, SMALL = 64 * 2**20, 64 * 2**10


@dataclass(frozen=True)
class Task:
    """Work of a known size; `make(device)` gives the function to be timed.

    `operations` counts a multiply-add as two; `moved` is the fewest bytes that have to go through
    the memory, or over the link to the host; `needs` is the memory it takes. `ceiling` names the
    figure of the catalogue that its rate is compared with.
    """

    kind: str
    what: str
    dtype: str
    operations: int
    moved: int
    needs: int
    ceiling: str
    make: Callable[[torch.device], Work]


def _of_squares(
    operation: Callable[..., object], dtype: str, side: int
) -> Callable[[torch.device], Work]:
    """An operation on two square matrices, which writes into a third."""

    def make(device: torch.device) -> Work:
        a, b, out = _filled(device, dtype, 3, side, side)
        return lambda: operation(a, b, out=out)

    return make


def matmuls() -> Iterator[Task]:
    """`a @ b` for square matrices."""
    for dtype in DTYPES:
        for side in MATMULS:
            moved = 3 * side**2 * DTYPES[dtype].itemsize
            make = _of_squares(torch.mm, dtype, side)
            what = f"{side:,}²"
            yield Task("matmul", what, dtype, 2 * side**3, moved, moved, "peak", make)


def products() -> Iterator[Task]:
    """`a * b`, which is limited by memory."""
    for dtype in DTYPES:
        for side in PRODUCTS:
            moved = 3 * side**2 * DTYPES[dtype].itemsize
            make = _of_squares(torch.mul, dtype, side)
            if dtype != "tf32":
                what = f"{side:,}²"
                yield Task("product", what, dtype, side**2, moved, moved, "bandwidth", make)


def convolutions() -> Iterator[Task]:
    """The first convolution of a small network, and one from the middle of a ResNet."""
    for dtype in DTYPES:
        for what, (batch, inputs, outputs, kernel, side) in CONVOLUTIONS.items():
            x, w = (batch, inputs, side, side), (outputs, inputs, kernel, kernel)
            results = batch * outputs * (side - kernel + 1) ** 2
            elements = batch * inputs * side**2 + outputs * inputs * kernel**2 + results

            def make(
                device: torch.device,
                x: tuple[int, ...] = x,
                w: tuple[int, ...] = w,
                dtype: str = dtype,
            ) -> Work:
                (images,), (weight,) = _filled(device, dtype, 1, *x), _filled(device, dtype, 1, *w)
                return lambda: F.conv2d(images, weight)

            yield Task(
                "convolution",
                what,
                dtype,
                2 * results * inputs * kernel**2,
                elements * DTYPES[dtype].itemsize,
                4 * elements * DTYPES[dtype].itemsize,  # libraries unfold the images
                "peak",
                make,
            )


def transfers() -> Iterator[Task]:
    """The same bytes between host and device, at once and in many parts, each way."""
    for outward in (True, False):
        for pinned in (True, False):
            for size in (LARGE, SMALL):

                def make(
                    device: torch.device,
                    outward: bool = outward,
                    pinned: bool = pinned,
                    size: int = size,
                ) -> Work:
                    return _copies(device, outward, pinned, size)

                way = "to the GPU" if outward else "back"
                memory = "pinned" if pinned else "pageable"
                parts = "whole" if size == LARGE else f"{LARGE // size:,} parts"
                what = f"{way}, {memory}, {parts}"
                yield Task("transfer", what, "", 0, LARGE, LARGE, "link", make)


KINDS: dict[str, Callable[[], Iterator[Task]]] = {
    "matmul": matmuls,
    "product": products,
    "convolution": convolutions,
    "transfer": transfers,
}


def _filled(device: torch.device, dtype: str, number: int, *shape: int) -> list[Tensor]:
    """Tensors of numbers between 0 and 1: zeros would draw less power than any real data."""
    return [torch.rand(shape, device=device).to(DTYPES[dtype]) for _ in range(number)]


def _copies(device: torch.device, outward: bool, pinned: bool, size: int) -> Work:
    host = torch.zeros(LARGE, dtype=torch.uint8)
    there = torch.zeros_like(host, device=device)
    if pinned:
        host = host.pin_memory()
    targets, sources = (there, host) if outward else (host, there)
    pairs = list(zip(torch.split(targets, size), torch.split(sources, size), strict=True))

    def copy() -> None:
        for target, source in pairs:
            target.copy_(source, non_blocking=pinned)

    return copy
