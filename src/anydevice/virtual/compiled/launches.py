"""The launches of compiled kernels on hollow GPUs, reported to those that listen, as plans do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

# How the host launches: by Triton from Python, from Inductor's wrapper, as part of a CUDA graph.
TRITON, COMPILED, REPLAYED = "triton", "compiled", "replayed"
GRAPH, REPLAY = "graph", "replay"  # a compiled function is called: its guards; a graph's replay


@dataclass(frozen=True)
class Product:
    """Matrix products in a kernel."""

    batch: int
    m: int
    n: int
    k: int
    kind: str = "matmul"
    share: float = 1.0


@dataclass(frozen=True)
class Launch:
    """One kernel, or with `kernels=0` the call of a compiled graph."""

    name: str
    device: int
    reads: tuple[Tensor, ...] = ()
    writes: tuple[Tensor, ...] = ()
    bytes: float = 0.0
    products: tuple[Product, ...] = ()
    kernels: int = 1
    host: str = COMPILED
    unit: str = ""  # the arithmetic of its products, if not that of its first tensor
    fill: float = 1.0  # the share of the card that its programs keep busy


Hear = Callable[[Launch], None]


@dataclass
class _State:
    """What this process runs just now."""

    listeners: list[Hear] = field(default_factory=list)
    inside: str = ""  # COMPILED or REPLAYED while a compiled graph runs


_state = _State()


def inside() -> str:
    """COMPILED or REPLAYED while a compiled graph runs, else nothing."""
    return _state.inside


@contextmanager
def within(kind: str) -> Iterator[None]:
    """A compiled graph runs."""
    before, _state.inside = _state.inside, kind
    try:
        yield
    finally:
        _state.inside = before


@contextmanager
def launching(hear: Hear) -> Iterator[None]:
    """Calls `hear` with each launch."""
    _state.listeners.append(hear)
    try:
        yield
    finally:
        _state.listeners.remove(hear)


@contextmanager
def unheard() -> Iterator[None]:
    """Inside the block nobody hears of launches."""
    before, _state.listeners = _state.listeners, []
    try:
        yield
    finally:
        _state.listeners = before


def report(launch: Launch) -> None:
    """A kernel is launched."""
    for hear in tuple(_state.listeners):
        hear(launch)
