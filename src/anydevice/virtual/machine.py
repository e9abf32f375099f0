"""Switching virtual GPUs on and off in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from anydevice.devices.catalogue import Card, card
from anydevice.errors import UsageError
from anydevice.text import size_of
from anydevice.virtual import build, core, ops, versions, visible


@dataclass(frozen=True)
class Machine:
    """The virtual GPUs of this process."""

    gpus: int
    gpu: Card
    hollow: bool = False

    def __str__(self) -> str:
        kind = "hollow" if self.hollow else "virtual"
        return f"{self.gpus} {kind} GPU{'s' * (self.gpus > 1)} of kind {self.gpu.name}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, from which `from_dict` makes the same machine in another process."""
        return {
            "gpus": self.gpus,
            "gpu": self.gpu.kind,
            "memory": self.gpu.memory,
            "hollow": self.hollow,
        }

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> "Machine":
        """The machine that `to_dict` described."""
        return machine(**entry)


_machine: Machine | None = None
_switching = threading.RLock()


def machine(
    gpus: int = 1, gpu: str = "h100", *, memory: int | str | None = None, hollow: bool = False
) -> Machine:
    """What is asked for, if there can be such a machine."""
    kind = card(gpu)
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= core.MOST_GPUS:
        raise UsageError(f"expected 1 to {core.MOST_GPUS} virtual GPUs, got {gpus!r}.")
    if memory is not None:
        kind = replace(kind, memory=size_of(memory))
    return Machine(gpus, kind, hollow)


def enable(
    gpus: int = 1, gpu: str = "h100", *, memory: int | str | None = None, hollow: bool = False
) -> None:
    """Makes this process see `gpus` GPUs of the kind `gpu` at `cuda`.

    `memory` is a GPU's memory, such as "16GiB", if not what the card has. Hollow GPUs have shapes
    and sizes, so that memory and work can be counted, but no values: what is read from them
    (`.item()`, `.cpu()`) is zero, and an op whose result's size depends on values (`nonzero`, a
    mask as an index) raises NotImplementedError.
    """
    put_in_place(machine(gpus, gpu, memory=memory, hollow=hollow))


def put_in_place(wanted: Machine) -> None:
    """Makes this process see the machine's GPUs, unless it does already."""
    import torch  # noqa: F401, whole before its names change

    with _switching:
        if not is_there(wanted):
            visible.leave_aside()
            begin(wanted)
            finish(wanted)


def is_there(wanted: Machine) -> bool:
    """Whether this process has these GPUs; having others is wrong use."""
    if _machine is None or _machine == wanted:
        return _machine is not None
    raise UsageError(
        f"expected the {_machine} that this process has already, got {wanted}"
        f"{_memory_differs(wanted, _machine)}: disable those first, or start another process."
    )


def begin(wanted: Machine) -> None:
    """The first half of enable(), for which torch._C is enough: devices, and their names there."""
    global _machine

    _refuse_beside_a_real_gpu()
    versions.announce()
    with _all_or_nothing():
        from anydevice.virtual import surface

        listed = ops.kept_op_list(core.path().parent).encode()
        native = core.library()
        _machine = wanted
        specification = (core.Gpu * wanted.gpus)(*[_specification(wanted.gpu)] * wanted.gpus)
        native.anydevice_enable(wanted.gpus, int(wanted.hollow), specification, listed)
        core.start_afresh(wanted.gpus, wanted.gpu.memory)
        surface.show_names(wanted.gpus, wanted.gpu)


def finish(wanted: Machine) -> None:
    """The second half, once torch is whole: what it took from torch._C as it was imported."""
    with _all_or_nothing():
        from anydevice.virtual import surface

        surface.show_attributes(wanted.gpu, without_values=wanted.hollow)
        _explain_absence(wanted.gpus)


def _specification(gpu: Card) -> core.Gpu:
    major, minor = gpu.capability
    threads = gpu.threads_per_multiprocessor
    return core.Gpu(gpu.memory, gpu.multiprocessors, threads, 10 * major + minor)


def disable() -> None:
    """Takes the virtual GPUs away again, and leaves PyTorch as it was.

    Tensors that are still on them can be moved to the host; anything else with them is an error.
    """
    global _machine
    from anydevice.virtual import surface

    with _switching:
        if _machine is not None:
            _machine = None
            surface.hide()
            core.disable()
            _explain_absence(0)


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """A step of enable(): if it fails, what was done is taken back, and one error says why."""
    try:
        yield
    except BaseException as error:
        _take_back()
        if isinstance(error, UsageError | MemoryError) or not isinstance(error, Exception):
            raise
        what = str(error).partition("\n")[0].rstrip(".") or "no message"
        raise build.BuildError(
            f"virtual GPUs cannot be put in place with torch {build.torch_version()} "
            f"({type(error).__name__}: {what}): use a torch that they are tested with "
            f"({', '.join(versions.TESTED)}), or report this with what `anydevice devices --issue` "
            "prints."
        ) from None


def _take_back() -> None:
    """What disable() does, as far as it can be done; no error here hides the first one."""
    global _machine

    _machine = None
    with suppress(Exception):
        from anydevice.virtual import surface

        surface.hide()
    with suppress(Exception):
        core.disable()
    with suppress(Exception):
        _explain_absence(0)


def _explain_absence(gpus: int) -> None:
    """A program that sees none of its GPUs is to read why."""
    from anydevice.devices import absence  # it needs a whole torch

    absence.virtual_gpus = gpus


def left_out() -> list[str]:
    """What of the GPUs does not work with this torch, since it has changed; each with the reason.

    A kernel whose op has another schema, and names of torch that are missing.
    """
    from anydevice.virtual import surface

    return [*core.left_out(), *surface.left_out()]


def enabled() -> Machine | None:
    """The virtual GPUs of this process, or None."""
    return _machine


@contextmanager
def virtual_gpus(
    gpus: int = 1, gpu: str = "h100", *, memory: int | str | None = None, hollow: bool = False
) -> Iterator[None]:
    """GPUs that are not there, inside a `with` block or a decorated function.

    >>> with virtual_gpus(2, "t4"):
    ...     torch.ones(3, device="cuda:1")  # doctest: +SKIP

    The arguments are those of `enable`. Inside another such block, the same GPUs stay as they are.
    """
    if is_there(machine(gpus, gpu, memory=memory, hollow=hollow)):
        yield
        return
    enable(gpus, gpu, memory=memory, hollow=hollow)
    try:
        yield
    finally:
        disable()


def _memory_differs(wanted: Machine, present: Machine) -> str:
    """The bytes of memory, if nothing else differs."""
    if str(wanted) != str(present):
        return ""
    return f" with {wanted.gpu.memory:,} bytes instead of {present.gpu.memory:,}"


def _refuse_beside_a_real_gpu() -> None:
    """Counting makes no context, and works before torch.cuda is loaded."""
    import torch

    count = getattr(torch._C, "_cuda_getDeviceCount", int)()
    if count:
        raise UsageError(
            f"expected a process without real GPUs, got one that sees {count}: "
            "start it with CUDA_VISIBLE_DEVICES= (empty) to use virtual ones."
        )
