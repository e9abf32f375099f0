"""Switching virtual GPUs on and off in this process."""

from dataclasses import dataclass

from anydevice.devices.catalogue import Card, card
from anydevice.errors import UsageError
from anydevice.virtual import core, ops

MOST_GPUS = 16


@dataclass(frozen=True)
class Machine:
    """The virtual GPUs of this process."""

    gpus: int
    gpu: Card
    hollow: bool


_machine: Machine | None = None


def enable(gpus: int = 1, gpu: str = "h100", *, hollow: bool = False) -> None:
    """Makes this process see `gpus` GPUs of the kind `gpu` at `cuda`.

    Hollow ones have shapes and sizes, so that memory and work can be counted, but no values:
    what is read from them (`.item()`, `.cpu()`) is zero, and an op whose result's size depends on
    values (`nonzero`, a mask as an index) raises NotImplementedError.
    """
    global _machine
    wanted = Machine(gpus, card(gpu), hollow)
    if wanted == _machine:
        return
    if _machine is not None:
        raise UsageError(
            f"expected the {_describe(_machine)} that this process has already, "
            f"got {_describe(wanted)}: start another process for those."
        )
    if not 1 <= gpus <= MOST_GPUS:
        raise UsageError(f"expected 1 to {MOST_GPUS} virtual GPUs, got {gpus}.")
    _refuse_beside_a_real_gpu()
    from anydevice.virtual import surface

    major, minor = wanted.gpu.capability
    each = core.Gpu(
        wanted.gpu.memory,
        wanted.gpu.multiprocessors,
        wanted.gpu.threads_per_multiprocessor,
        10 * major + minor,
    )
    specification = (core.Gpu * gpus)(*[each] * gpus)
    listed = ops.op_list().encode()
    core.check(core.library().anydevice_enable(gpus, int(hollow), specification, listed))
    core.start_afresh(gpus, wanted.gpu.memory)
    surface.show(gpus, wanted.gpu, without_values=hollow)
    _machine = wanted


def disable() -> None:
    """Takes the virtual GPUs away again; tensors on them can only be freed from then on."""
    global _machine
    if _machine is None:
        return
    from anydevice.virtual import surface

    surface.hide()
    core.library().anydevice_disable()
    _machine = None


def enabled() -> Machine | None:
    """The virtual GPUs of this process, or None."""
    return _machine


def _describe(machine: Machine) -> str:
    kind = "hollow" if machine.hollow else "virtual"
    return f"{machine.gpus} {kind} GPU{'s' * (machine.gpus > 1)} of kind {machine.gpu.name}"


def _refuse_beside_a_real_gpu() -> None:
    import torch

    if torch.version.cuda and torch.cuda.is_available():
        raise UsageError(
            f"this machine has a real GPU ({torch.cuda.get_device_name()}); virtual GPUs are for "
            "machines without one. Hide it with CUDA_VISIBLE_DEVICES= to use virtual ones."
        )
