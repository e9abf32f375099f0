"""Streams and events: torch.Stream and torch.Event, in the classes that torch.cuda derives from."""

from __future__ import annotations

import time
from typing import Any

import torch

from anydevice.virtual import core


class CudaStreamBase(torch._C.Stream):  # torch.Stream is not there yet
    """`torch._C._CudaStreamBase`."""

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> Any:
        """A new stream of the current device, or the one with these ids."""
        if stream_id or device_index or device_type:
            return super().__new__(
                cls, stream_id=stream_id, device_index=device_index, device_type=_cuda_type()
            )
        device = torch.device("cuda", torch.cuda.current_device())
        return super().__new__(cls, device=device, priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """As cudaDeviceGetStreamPriorityRange on cards of today."""
        return (0, -5)

    @property
    def cuda_stream(self) -> int:
        """The handle: 0 is the default stream."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """All streams are alike."""
        return 0


class CudaEventBase:
    """`torch._C._CudaEventBase`: a moment, since work is done when it is asked for."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        """An event that is not recorded yet."""
        event = super().__new__(cls)
        event._timing = enable_timing
        event._recorded = None
        event._device = None
        return event

    _timing: bool
    _recorded: float | None
    _device: torch.device | None

    def record(self, stream: Any) -> None:
        """Remembers now."""
        self._recorded = time.perf_counter()
        self._device = stream.device

    def wait(self, stream: Any) -> None:
        """There is nothing to wait for."""

    def query(self) -> bool:
        """All that was asked for is done."""
        return True

    def synchronize(self) -> None:
        """Reported, as the card would wait here."""
        core.library().anydevice_synchronize(torch.cuda.current_device())

    def elapsed_time(self, end: CudaEventBase) -> float:
        """Milliseconds from this event to the other."""
        if not (self._timing and end._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded is None or end._recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end._recorded - self._recorded) * 1000

    @property
    def cuda_event(self) -> int:
        """A handle that is unlike any other's."""
        return id(self)

    @property
    def device(self) -> torch.device | None:
        """Where it was recorded."""
        return self._device


class _CUDAGraph:
    """`torch._C._CUDAGraph`."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        """There is no GPU that could replay what it did."""
        raise NotImplementedError("virtual GPUs have no CUDA graphs.")


def _graph_pool_handle() -> None:
    raise NotImplementedError("virtual GPUs have no CUDA graphs.")


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    library = core.library()

    def as_tuple(device: int, stream: int) -> tuple[int, int, int]:
        return (stream, device, _cuda_type())

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        core.check(library.anydevice_set_current_device(device_index))
        library.anydevice_set_current_stream(device_index, stream_id)

    def current_stream(device: int) -> int:
        core.refuse_absent(device)
        return int(library.anydevice_current_stream(device))

    return {
        "_CudaStreamBase": CudaStreamBase,
        "_CudaEventBase": CudaEventBase,
        "_cuda_getCurrentStream": lambda device: as_tuple(device, current_stream(device)),
        "_cuda_getDefaultStream": lambda device: as_tuple(device, 0),
        "_cuda_getStreamFromExternal": lambda pointer, device: as_tuple(device, pointer),
        "_cuda_getCurrentRawStream": current_stream,
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_CUDAGraph": _CUDAGraph,
        "_graph_pool_handle": _graph_pool_handle,
    }


def _cuda_type() -> int:
    return int(torch._C._autograd.DeviceType.CUDA.value)
