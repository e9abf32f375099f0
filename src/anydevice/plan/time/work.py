"""What one training step does, as plain data: ops, transfers and waits in order.

It names no card: predict.py simulates the same work for each.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` matrix products of m × k times k × n; a convolution is one too."""

    batch: int
    m: int
    n: int
    k: int
    kind: str = "matmul"  # or "convolution", "winograd", "attention", "recurrence"
    share: float = 1.0  # of the products that is computed: half for causal attention

    @property
    def flops(self) -> float:
        """A multiplication and an addition for each."""
        return 2.0 * self.batch * self.m * self.n * self.k * self.share


@dataclass(frozen=True, slots=True)
class Op:
    """One op that the host launches: its kernels and the bytes that they move."""

    name: str
    device: int
    stream: int
    unit: str  # the arithmetic that the products are done in: "float32", "tf32", "bfloat16" …
    products: tuple[Product, ...]
    bytes: float
    kernels: int
    backward: bool  # launched by autograd's engine, without Python
    tensors: int  # in its longest list, for foreach optimizers
    aligned: bool = True  # rows of a product begin at multiples of 16 bytes
    layout: float = 0.0  # bytes to convert channels first to last, which tensor cores need
    reads: tuple[int, ...] = ()  # storages, by which streams and GPUs wait for each other
    writes: tuple[int, ...] = ()
    fill: float = 1.0  # the share of the card that the program's own kernel keeps busy
    host: str = ""  # how it is launched, if not as an op: virtual.compiled.launches has the names


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
    """A collective among GPUs: `bytes` pass through each GPU's link."""

    name: str  # "all_reduce", "send" …
    device: int
    bytes: float
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()  # who takes part; empty if all GPUs of this process do
    size: int = 0  # bytes of what is reduced or gathered as a whole
    group: str = ""
    peer: int = -1  # the other rank of a send or a recv
    stream: int = 0  # the current one, after whose work it begins
    waits: bool = False  # whether that stream waits for its end


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waits until a GPU is done."""

    device: int
    what: str


@dataclass(frozen=True, slots=True)
class HostTime:
    """The host computes: an op on the CPU, with the processor time that it took here."""

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
        """The FLOPs of all products."""
        return sum(product.flops for op in self.ops for product in op.products)
