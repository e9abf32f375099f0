"""Switching virtual GPUs on and off in this process."""

import ctypes
from dataclasses import dataclass

from anydevice.virtual import build, card, ops

MOST_GPUS = 16


@dataclass(frozen=True)
class Machine:
    """The virtual GPUs of this process."""

    gpus: int
    gpu: card.GPU
    hollow: bool


class _Gpu(ctypes.Structure):
    """`anydevice::Gpu` in native/anydevice.h."""

    _fields_ = (
        ("memory", ctypes.c_int64),
        ("multiprocessors", ctypes.c_int),
        ("threads_per_multiprocessor", ctypes.c_int),
    )


_native: ctypes.CDLL | None = None
_machine: Machine | None = None


def enable(gpus: int = 1, gpu: str = "h100", *, hollow: bool = False) -> None:
    """Makes this process see `gpus` GPUs of the kind `gpu` at `cuda`.

    Hollow ones have shapes and bytes to count, but no values.
    """
    global _machine
    wanted = Machine(gpus, card.kind(gpu), hollow)
    if wanted == _machine:
        return
    if _machine is not None:
        raise RuntimeError(
            f"this process has {_machine.gpus} virtual GPU(s) of kind {_machine.gpu.name} already; "
            f"expected the same again, got {gpus} of {wanted.gpu.name}: start another process."
        )
    if not 1 <= gpus <= MOST_GPUS:
        raise ValueError(f"expected 1 to {MOST_GPUS} virtual GPUs, got {gpus}.")
    _refuse_beside_a_real_gpu()
    from anydevice.virtual import surface

    specification = (_Gpu * gpus)(
        *[
            _Gpu(
                wanted.gpu.memory,
                wanted.gpu.multiprocessors,
                wanted.gpu.threads_per_multiprocessor,
            )
        ]
        * gpus
    )
    check(native().anydevice_enable(gpus, int(hollow), specification, ops.op_list().encode()))
    _machine = wanted
    surface.show(gpus, wanted.gpu)


def disable() -> None:
    """Takes the virtual GPUs away again; tensors on them can only be freed from then on."""
    global _machine
    if _machine is None:
        return
    from anydevice.virtual import surface

    surface.hide()
    native().anydevice_disable()
    _machine = None


def enabled() -> Machine | None:
    """The virtual GPUs of this process, or None."""
    return _machine


def native() -> ctypes.CDLL:
    """The native library, built and loaded at the first call."""
    global _native
    if _native is None:
        library = ctypes.CDLL(str(build.library()))
        library.anydevice_enable.restype = ctypes.c_char_p
        library.anydevice_set_current_device.restype = ctypes.c_char_p
        library.anydevice_current_stream.restype = ctypes.c_int64
        _native = library
    return _native


def check(error: bytes | None) -> None:
    """Raises what a native function reports."""
    if error is not None:
        raise RuntimeError(error.decode())


def _refuse_beside_a_real_gpu() -> None:
    import torch

    if torch.version.cuda and torch.cuda.is_available():
        raise RuntimeError(
            f"this machine has a real GPU ({torch.cuda.get_device_name()}); virtual GPUs are for "
            "machines without one. Hide it with CUDA_VISIBLE_DEVICES= to use virtual ones."
        )
