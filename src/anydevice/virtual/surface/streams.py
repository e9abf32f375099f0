"""Streams and events: torch.Stream and torch.Event, in the classes that torch.cuda derives from."""

from __future__ import annotations

import struct
from typing import Any

import torch

from anydevice.virtual import core

PRIORITIES = (0, -3)  # lowest and highest, as PyTorch has them on any card
TRACED = ("creation", "deletion", "record", "wait", "synchronization")  # as native code numbers it
HANDLE = 64  # bytes of an event's handle for another process


class CudaStreamBase(torch._C.Stream):
    """`torch._C._CudaStreamBase`."""

    def __new__(
        cls,
        priority: int = 0,
        stream_id: int = 0,
        device_index: int = 0,
        device_type: int = 0,
        stream_ptr: int = 0,
    ) -> Any:
        """A new stream of the current device, the one with these ids, or one of another library."""
        if not (stream_id or device_index or device_type):
            if stream_ptr and priority:
                raise RuntimeError("Priority was explicitly set for a external stream")
            library = core.library()
            device_index = library.anydevice_current_device()
            stream_id = stream_ptr or library.anydevice_new_stream(device_index, priority)
        return super().__new__(
            cls, stream_id=stream_id, device_index=device_index, device_type=_cuda_type()
        )

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return PRIORITIES

    @property
    def cuda_stream(self) -> int:
        """The handle: 0 is the default stream."""
        return int(self.stream_id)

    @property
    def priority(self) -> int:
        """As the stream's number has it; see new_stream() in native/runtime/guard.cpp."""
        of_the_pool = self.stream_id & 1
        return 1 - (self.stream_id >> 1 & 15) if of_the_pool else 0


Event: Any = torch._C.Event


class CudaEventBase(Event):  # type: ignore[misc]
    """`torch._C._CudaEventBase`: a moment, since work is done when it is asked for."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        """An event that is not recorded yet."""
        if interprocess and enable_timing:
            raise cuda_error(1, "invalid argument", "cudaErrorInvalidValue")
        event = super().__new__(
            cls,
            device="cuda",
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )
        event._timing = enable_timing
        event._interprocess = interprocess
        event._recorded = None
        event._device = None
        return event

    _timing: bool
    _interprocess: bool
    _recorded: float | None
    _device: torch.device | None

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Any:
        """An event of another process."""
        if len(handle) != HANDLE:
            raise RuntimeError(
                f"cudaIpcEventHandle_t expects byte-like object of size {HANDLE}, "
                f"but got {len(handle)}"
            )
        event = cls(interprocess=True)
        event._device = torch.device(device)
        (event._recorded,) = struct.unpack_from("d", handle)
        return event

    def ipc_handle(self) -> bytes:
        """What from_ipc_handle() takes."""
        if not self._interprocess:
            raise cuda_error(1, "invalid argument", "cudaErrorInvalidValue")
        if self._device is None:
            self._create(torch.cuda.current_stream())
        return struct.pack("d", self._recorded).ljust(HANDLE, b"\0")  # one clock for all processes

    def _create(self, stream: Any) -> None:
        """At its first record a card makes the event; at each it is as late as its stream is."""
        if self._device is None:
            self._device = stream.device
            self._trace("creation")
        library = core.library()
        self._recorded = library.anydevice_ready_at(stream.device.index, stream.stream_id)

    def _trace(self, what: str, stream: int = 0) -> None:
        core.library().anydevice_trace_event(TRACED.index(what), id(self), stream)

    def __del__(self) -> None:
        if getattr(self, "_device", None) is not None:
            self._trace("deletion")

    def record(self, stream: Any) -> None:
        """Remembers when the stream is done with what it has been asked for."""
        if self._device is not None and self._device != stream.device:
            raise RuntimeError(
                f"Event device {self._device.index} does not match recording stream's device "
                f"{stream.device.index}."
            )
        self._create(stream)
        self._trace("record", stream.stream_id)

    def wait(self, stream: Any) -> None:
        """The stream is done no earlier than the event."""
        if self._recorded is not None:
            index = stream.device.index
            core.library().anydevice_stream_waits(index, stream.stream_id, self._recorded)
            self._trace("wait", stream.stream_id)

    def query(self) -> bool:
        """Whether all that was asked for before it is done."""
        return self._recorded is None or self._recorded <= core.library().anydevice_now()

    def synchronize(self) -> None:
        """Waits, and is reported."""
        if self._recorded is not None and self._device is not None:
            library = core.library()
            self._trace("synchronization")
            library.anydevice_wait_until(self._recorded)
            library.anydevice_synchronize_event(self._device.index)

    def elapsed_time(self, end: CudaEventBase) -> float:
        """Milliseconds from this event to the other."""
        if not (self._timing and end._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._recorded is None or end._recorded is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise ValueError("Both events must be completed before calculating elapsed time.")
        if self._device != end._device:
            raise cuda_error(400, "invalid resource handle", "cudaErrorInvalidResourceHandle")
        return (end._recorded - self._recorded) * 1000

    @property
    def cuda_event(self) -> int:
        """A handle that is unlike any other's; 0 before the first record."""
        return 0 if self._device is None else id(self)

    @property
    def event_id(self) -> int:
        """The same handle, as torch.Event names it."""
        return self.cuda_event

    @property
    def device(self) -> torch.device | None:
        """Where it was recorded."""
        return self._device


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    library = core.library()

    def as_tuple(device: int, stream: int) -> tuple[int, int, int]:
        return (stream, device, _cuda_type())

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        library.anydevice_set_current_device(device_index)
        library.anydevice_set_current_stream(device_index, stream_id)

    def current_stream(device: int) -> int:
        core.refuse_absent(device)
        return int(library.anydevice_current_stream(device))

    def synchronize() -> None:
        library.anydevice_synchronize(library.anydevice_current_device())

    library.anydevice_set_sync_debug_mode(0)
    return {
        "_CudaStreamBase": CudaStreamBase,
        "_CudaEventBase": CudaEventBase,
        "_cuda_getCurrentStream": lambda device: as_tuple(device, current_stream(device)),
        "_cuda_getDefaultStream": lambda device: as_tuple(device, 0),
        "_cuda_getStreamFromExternal": lambda pointer, device: as_tuple(device, pointer),
        "_cuda_getCurrentRawStream": current_stream,
        "_cuda_setStream": set_stream,
        "_cuda_synchronize": synchronize,
        "_cuda_get_sync_debug_mode": lambda: library.anydevice_sync_debug_mode(),
        "_cuda_set_sync_debug_mode": lambda mode: library.anydevice_set_sync_debug_mode(mode),
    }


def cuda_error(code: int, text: str, name: str) -> Exception:
    """The error that PyTorch makes of one of CUDA's."""
    error: Any = torch.AcceleratorError(
        f"CUDA error: {text}\nSearch for `{name}' in https://docs.nvidia.com/cuda/"
        "cuda-runtime-api/group__CUDART__TYPES.html for more information.\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    error.error_code = code
    return error  # type: ignore[no-any-return]


def _cuda_type() -> int:
    return int(torch._C._autograd.DeviceType.CUDA.value)
