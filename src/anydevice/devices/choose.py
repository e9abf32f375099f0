"""Which device to use: by index, with a fallback, the idlest, or for a block of code."""

import operator
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from anydevice.devices.absence import why_no_gpu
from anydevice.devices.load import load_of
from anydevice.errors import UsageError, did_you_mean
from anydevice.notices import say_once
from anydevice.text import size_text

DeviceLike = str | int | torch.device


class DeviceNotFound(UsageError, RuntimeError):  # noqa: N818, the name users know
    """The device asked for is not here, or is not a device; the text lists what is here."""


def cpu() -> torch.device:
    """The CPU as a torch.device.

    >>> cpu()
    device(type='cpu')
    """
    return torch.device("cpu")


def num_gpus() -> int:
    """How many GPUs there are, of any kind that `torch.accelerator` reports (CUDA, MPS, XPU, …).

    >>> num_gpus()  # doctest: +SKIP
    2
    """
    return torch.accelerator.device_count()


def gpu(index: int = 0) -> torch.device:
    """The device of the GPU with this index, whether it is here or not, as `torch.device` does.

    Using one that is not here is PyTorch's own error, which `explain` explains. `pick("gpu:1")`
    refuses it at once, and `try_gpu(1)` falls back to the CPU.

    Args:
        index: Counted from 0.

    Returns:
        Its device, such as `torch.device("cuda:1")`: of the kind of GPU that is here, else CUDA.

    Raises:
        DeviceNotFound: If the index is no whole number of 0 or more.

    >>> gpu(1)  # doctest: +SKIP
    device(type='cuda', index=1)
    """
    return torch.device(_gpu_type() or "cuda", _checked(index))


def try_gpu(index: int = 0) -> torch.device:
    """The GPU with this index, else the CPU, with a one-time notice that says why.

    Args:
        index: Counted from 0.

    >>> network.to(try_gpu())  # doctest: +SKIP
    """
    if _checked(index) < num_gpus():
        return gpu(index)
    say_once(f"anydevice: try_gpu({index}) falls back to the CPU, because {_why_not()}.")
    return cpu()


def try_all_gpus() -> list[torch.device]:
    """All GPUs, as a list; empty if there are none.

    >>> [torch.zeros(3, device=device) for device in try_all_gpus()]  # doctest: +SKIP
    """
    return [gpu(index) for index in range(num_gpus())]


def pick(spec: DeviceLike = "auto") -> torch.device:
    """The device that a name, an index or a torch.device stands for, if it is here.

    Args:
        spec: "auto" is the GPU with the most free memory and the least load, or the CPU if there
            is no GPU; "gpu" is any kind of GPU, and a plain number is its index.

    Raises:
        DeviceNotFound: There is no such device; the message lists those that are here.

    >>> pick("cpu")
    device(type='cpu')
    """
    if spec == "auto":
        return _idlest() if num_gpus() else cpu()
    device = spec if isinstance(spec, torch.device) else _parse(spec)
    if device.type == "cpu":
        if device.index:  # torch accepts it silently
            raise DeviceNotFound(f'expected "cpu", of which there is one, got {str(spec)!r}.')
        return cpu()
    if not _is_here(device):
        raise DeviceNotFound(_not_here(repr(str(spec))))
    return device


def exact(device: torch.device) -> torch.device:
    """The device with its index: "cuda" is the current GPU, such as "cuda:0"."""
    if device.index is None and device.type == _gpu_type():
        return torch.device(device.type, torch.accelerator.current_device_index())
    return device


def current() -> torch.device:
    """The device on which a new tensor would be made.

    >>> current()  # doctest: +SKIP
    device(type='cpu')
    """
    return torch.empty(0).device


@contextmanager
def use(spec: DeviceLike) -> Iterator[torch.device]:
    """Make a device the default for new tensors, and the current GPU, inside a `with` block.

    Args:
        spec: A device as `pick` takes it.

    Raises:
        DeviceNotFound: There is no such device.

    >>> with use("cpu") as device:
    ...     torch.ones(2).device == device
    True
    """
    device = exact(pick(spec))
    with ExitStack() as stack:
        if device.type == _gpu_type():
            stack.enter_context(torch.accelerator.device_index(device.index))
        stack.enter_context(device)
        yield device


def _gpu(index: int, asked: str) -> torch.device:
    if index >= num_gpus():
        raise DeviceNotFound(_not_here(asked))
    return torch.device(_gpu_type() or "cuda", index)


def _checked(index: object) -> int:
    """A GPU's index as an int: numpy's integers count, True and "0" do not."""
    try:
        number = -1 if isinstance(index, bool) else operator.index(index)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        raise DeviceNotFound(f"expected a GPU's index, counted from 0, got {index!r}.")
    return number


def _gpu_type() -> str | None:
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type if accelerator else None


def _idlest() -> torch.device:
    """The GPU with the largest share of free memory times idle time; the first one of equals."""
    gpus = try_all_gpus()
    if len(gpus) == 1:
        return gpus[0]
    loads = [load_of(device) for device in gpus]
    return max(zip(gpus, loads, strict=True), key=lambda pair: (pair[1].room, pair[1].free))[0]


def _parse(spec: object) -> torch.device:
    """A device from its name or index; `gpu` and `gpu:1` are of the kind that is here."""
    if not isinstance(spec, str):
        if hasattr(spec, "__index__") and not isinstance(spec, bool):
            return _gpu(_checked(spec), asked=f"GPU {spec}")
        raise DeviceNotFound(f'expected a device such as "auto", "cpu" or "cuda:0", got {spec!r}.')
    name, _, number = spec.rpartition(":")
    if spec == "gpu" or (name in ("gpu", "") and number.isascii() and number.isdecimal()):
        return _gpu(0 if spec == "gpu" else int(number), asked=repr(spec))
    try:
        return torch.device(spec)
    except RuntimeError:
        pass
    kind = spec.partition(":")[0].lower()
    known = ("auto", "cpu", "gpu", "cuda", "mps", "xpu", "meta")
    hint = did_you_mean(kind, known, "`anydevice devices` lists what is here.")
    raise DeviceNotFound(
        f'expected a device such as "auto", "cpu", "gpu" or "cuda:0", got {spec!r}: {hint}'
    )


def _is_here(device: torch.device) -> bool:
    if device.type == _gpu_type():
        return (device.index or 0) < num_gpus()
    return device.type in ("cpu", "meta")


def _not_here(asked: str) -> str:
    """The sentence for a device that is not here: what was asked, what is here, what to do."""
    gpus = [f"{device} ({_describe(device)})" for device in try_all_gpus()]
    if gpus:
        here = f"{', '.join(gpus)} and cpu are"
        return f'{asked} is not here, only {here}: name one of these, or "auto" for the idlest.'
    return (
        f"{asked} is not here, only cpu is: {_why_not()}. ad.try_gpu() takes a GPU where there is "
        "one and the CPU elsewhere; `anydevice run` gives a program GPUs that are not there; "
        "`anydevice devices` says what to do about the GPU."
    )


def _describe(device: torch.device) -> str:
    load = load_of(device)
    return f"{load.name}, {size_text(load.free)} free" if load.total else load.name


def _why_not() -> str:
    absence = why_no_gpu()
    return absence.reason if absence else f"GPUs here: {num_gpus()}, counted from 0"
