"""What one training step asks of a GPU, as plain data: ops, transfers, waits, in order.

It names no card: predict.py simulates the same work for each.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product, or what a convolution is on the card: `batch` of m × k times k × n."""

    batch: int
    m: int
    n: int
    k: int
    kind: str = "matmul"  # or "convolution", "winograd", "attention", "recurrence"
    share: float = 1.0  # of the products that are computed: half of a causal attention's

    @property
    def flops(self) -> float:
        """A multiply and an add for each."""
        return 2.0 * self.batch * self.m * self.n * self.k * self.share


@dataclass(frozen=True, slots=True)
class Op:
    """One op as the host launches it: so many kernels, over so many bytes."""

    name: str
    device: int
    stream: int
    unit: str  # the arithmetic that the products are done in: "float32", "tf32", "bfloat16" …
    products: tuple[Product, ...]
    bytes: float
    kernels: int
    backward: bool  # launched by autograd's engine, without Python
    tensors: int  # in its longest list: what a foreach optimizer sorts through
    aligned: bool = True  # rows of a product begin at multiples of 16 bytes
    layout: float = 0.0  # more bytes, where tensor cores want channels last and have them first
    reads: tuple[int, ...] = ()  # storages, by which streams and GPUs wait for each other
    writes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy between two GPUs, or between one and the host (virtual.events.HOST)."""

    bytes: int
    source: int
    destination: int
    pinned: bool
    blocking: bool  # the host waits for it
    stream: int = 0
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective among GPUs: `bytes` pass each GPU's link."""

    name: str
    device: int
    bytes: float
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waits until a GPU has nothing left to do."""

    device: int
    what: str


@dataclass(frozen=True, slots=True)
class HostTime:
    """The host computes: an op on the CPU, as long as it took here."""

    seconds: float
    name: str


Entry = Op | Transfer | Exchange | Wait | HostTime


@dataclass
class Work:
    """The entries of one step."""

    entries: list[Entry] = field(default_factory=list)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def ops(self) -> Iterable[Op]:
        """The ops alone."""
        return (entry for entry in self.entries if isinstance(entry, Op))

    @property
    def flops(self) -> float:
        """Of all products."""
        return sum(product.flops for op in self.ops for product in op.products)
