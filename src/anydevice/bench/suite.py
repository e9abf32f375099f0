"""Which tasks are measured on which devices, and which are left out because they take too long."""

from collections.abc import Iterator, Sequence
from math import inf

import torch
from rich.console import Console

from anydevice.bench.clock import FEWEST, Clock, TooSlow
from anydevice.bench.findings import Figure, Findings, LeftOut, Place
from anydevice.bench.tasks import KINDS, Task
from anydevice.devices import host
from anydevice.devices.catalogue import Card, card
from anydevice.devices.choose import DeviceLike, exact, num_gpus, pick
from anydevice.devices.load import load_of
from anydevice.errors import UsageError, did_you_mean
from anydevice.text import size_text
from anydevice.train.loop.precision import float32_products
from anydevice.virtual.machine import enabled

PATIENCE = 3.0  # seconds that one figure may take, unless everything is asked for
LADDERS = ("matmul", "product")  # kinds whose smaller tasks predict how long the larger ones take
TOO_SLOW = "Too slow for a quick look (--full measures it)"


def bench(
    devices: Sequence[DeviceLike] | None = None,
    kinds: Sequence[str] | None = None,
    *,
    full: bool = False,
) -> Findings:
    """Measures how fast devices do the same work, synchronised and warmed up.

    Args:
        devices: The devices to measure. Default: the CPU, and the GPU with the least load.
        kinds: The kinds of work: "matmul", "product", "convolution", "transfer". Default: all.
        full: Whether to measure everything. Otherwise, what would take more than some seconds for
            a figure is left out, and listed.

    Returns:
        The figures, which show themselves as tables in a terminal or notebook.

    Raises:
        UsageError: If there is no such kind of work.
        DeviceNotFound: If a device is not here.

    Example:
        >>> import anydevice as ad
        >>> findings = ad.bench(["cpu"], ["product"])
        >>> {figure.dtype for figure in findings.figures} >= {"float32", "float16"}
        True
    """
    chosen = dict.fromkeys(exact(pick(device)) for device in devices or _both())
    benches = [_Bench(device, full) for device in chosen]
    tasks = [task for kind in _known(kinds or list(KINDS)) for task in KINDS[kind]()]
    figures: list[Figure] = []
    left_out: list[LeftOut] = []
    with Console(stderr=True).status("") as status:
        for task in tasks:
            for one in benches:
                status.update(f"{task.kind} {task.what} {task.dtype} on {one.device}")
                found = one.figure(task)
                if isinstance(found, Figure):
                    figures.append(found)
                else:
                    left_out.append(found)
    return Findings(tuple(b.place for b in benches), tuple(figures), tuple(dict.fromkeys(left_out)))


class _Bench:
    """One device under measurement."""

    def __init__(self, device: torch.device, full: bool) -> None:
        self.device = device
        self.patience = inf if full else PATIENCE
        self.clock = Clock(device)
        self.place = _place(device)
        self.card = None if self.place.virtual else _card(device, self.place.name)
        self._pace: dict[tuple[str, str], float] = {}  # seconds for a unit of work

    def figure(self, task: Task) -> Figure | LeftOut:
        """The task's figure, or why there is none."""
        never = self._never(task)
        if never:
            return LeftOut(task.kind, "", task.dtype, str(self.device), never)
        free = host.cpu().free if self.device.type == "cpu" else load_of(self.device).free
        if free and task.needs > free / 2:
            needs = f"Needs {size_text(task.needs)} of memory, {size_text(free)} are free"
            return self._left_out(task, needs)
        expected = self._pace.get((task.kind, task.dtype), 0.0) * _size(task)
        if expected * (1 + FEWEST) > self.patience:
            return self._left_out(task, TOO_SLOW, expected)
        try:
            return self._measured(task)
        except TooSlow as slow:
            return self._left_out(task, TOO_SLOW, slow.seconds)
        except (
            RuntimeError,
            TypeError,
        ) as error:  # this device lacks the dtype, or the memory after all
            return self._left_out(task, str(error).splitlines()[0].rstrip("."))

    @torch.inference_mode()
    def _measured(self, task: Task) -> Figure:
        with float32_products("tf32" if task.dtype == "tf32" else "ieee"):
            # A pageable transfer would also wait for the flush before it returned.
            touched = 0 if task.kind == "transfer" else task.moved
            timing = self.clock.time(
                task.make(self.device), touched=touched, patience=self.patience
            )
        if task.kind in LADDERS:
            self._pace[task.kind, task.dtype] = timing.seconds / _size(task)
        rate = (task.operations if task.ceiling == "peak" else task.moved) / timing.seconds
        ceiling = _ceiling(self.card, task)
        return Figure(
            kind=task.kind,
            what=task.what,
            dtype=task.dtype,
            device=str(self.device),
            virtual=self.place.virtual,
            seconds=timing.seconds,
            low=timing.low,
            high=timing.high,
            repeats=timing.repeats,
            unsynchronised=timing.unsynchronised,
            flops_per_second=task.operations / timing.seconds or None,
            bytes_per_second=task.moved / timing.seconds,
            ceiling=ceiling,
            of_ceiling=rate / ceiling if ceiling else None,
        )

    def _never(self, task: Task) -> str | None:
        """Why this device cannot have this kind of task at all."""
        if task.kind == "transfer" and self.device.type == "cpu":
            return "The CPU's memory is the host's"
        if task.dtype == "tf32" and not _has_tf32(self.device):
            return "TF32 is a mode of NVIDIA GPUs of capability 8.0 and newer"
        return None

    def _left_out(self, task: Task, reason: str, expected: float | None = None) -> LeftOut:
        return LeftOut(task.kind, task.what, task.dtype, str(self.device), reason, expected)


def _both() -> Iterator[DeviceLike]:
    yield "cpu"
    if num_gpus():
        yield "auto"


def _known(kinds: Sequence[str]) -> Iterator[str]:
    for kind in kinds:
        if kind not in KINDS:
            hint = did_you_mean(kind, KINDS)
            raise UsageError(f"expected a kind of work to measure, got {kind!r}: {hint}")
        yield kind


def _place(device: torch.device) -> Place:
    if device.type == "cpu":
        cpu = host.cpu()
        return Place("cpu", cpu.name, False, cpu.threads, cpu.usable)
    return Place(str(device), load_of(device).name, device.type == "cuda" and enabled() is not None)


def _card(device: torch.device, name: str) -> Card | None:
    """What the catalogue knows of a real GPU."""
    try:
        return card(name) if device.type == "cuda" else None
    except UsageError:
        return None


def _ceiling(known: Card | None, task: Task) -> float | None:
    if known is None:
        return None
    return known.peak.get(task.dtype) if task.ceiling == "peak" else getattr(known, task.ceiling)


def _size(task: Task) -> int:
    return task.operations or task.moved


def _has_tf32(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
