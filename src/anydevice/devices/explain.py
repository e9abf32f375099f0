"""Device errors explained: which of the user's own variables is where, and the line to change."""

import re
from contextlib import ContextDecorator
from types import TracebackType

import torch

from anydevice.devices.absence import why_no_gpu
from anydevice.devices.mend import explain_mismatch, explain_numpy
from anydevice.devices.scene import scenes

_MISMATCH = re.compile(
    r"same device|is not on the expected device|on the same device as|type for generator but found"
    r"|Input type \(.*\) and weight type \(.*\) should be the same|Placeholder storage has not been"
    r"|Expected object of device type|expected device \S+ but got|should be on the same"
)
_NUMPY = re.compile(r"can't convert \S+ device type tensor to numpy")
_LOADING = re.compile(r"Attempting to deserialize object on")
_ABSENT = re.compile(
    r"not compiled with \w+ enabled|Found no NVIDIA driver|driver on your system is too old"
    r"|No CUDA GPUs are available|is not linked with support for \w+ devices"
    r"|accelerator device when none is available|generator without ATen_cuda library"
    r"|invalid device ordinal"
)


class explain(ContextDecorator):  # noqa: N801, used like a function
    """Inside, a device error gains a note that names the variables and the line that mends it.

    >>> with explain():
    ...     network(x)  # doctest: +SKIP
    """

    def __enter__(self) -> "explain":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            annotate(error)


def annotate(error: Exception) -> None:
    """Add the explanation to a device error as a note, once; leave other errors alone."""
    if any(note.startswith("anydevice: ") for note in getattr(error, "__notes__", ())):
        return
    try:
        explanation = _explanation(error)
    except Exception:  # an explanation must never hide the error it is about
        explanation = None
    if explanation:
        error.add_note(f"anydevice: {explanation}")


def _explanation(error: Exception) -> str | None:
    text = str(error)
    if _LOADING.search(text):
        return (
            f"the file holds tensors of a device that is not here ({_what_is_here()}).\n"
            "  Mend: torch.load(…, map_location=anydevice.try_gpu())"
        )
    if _ABSENT.search(text):
        return (
            f"{_what_is_here()}.\n"
            "  Mend: device = anydevice.try_gpu(), a GPU where there is one and the CPU elsewhere"
        )
    traceback = scenes(error.__traceback__)
    if _NUMPY.search(text):
        return explain_numpy(traceback)
    if isinstance(error, RuntimeError | ValueError) and _MISMATCH.search(text):
        return explain_mismatch(traceback)
    return None


def _what_is_here() -> str:
    absence = why_no_gpu()
    if absence:
        return f"there is no GPU, because {absence.reason}. {absence.remedy.rstrip('.')}"
    count = torch.accelerator.device_count()
    return f"GPUs here: {count}, counted from 0"
