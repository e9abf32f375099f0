"""Tensors for other processes and other libraries: what torch.multiprocessing and DLPack call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from typing import Any

import torch

from anydevice import system
from anydevice.virtual.surface.storage import whole

# Work is done when it is asked for: a receiver has no event to wait for.
NO_EVENT = b""


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {"_cuda_ipc_collect": lambda: torch.ops.anydevice.release_received()}


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What torch.multiprocessing.reductions calls of torch.UntypedStorage, and DLPack."""
    item: Any = torch.UntypedStorage.__getitem__

    def getitem(self: torch.UntypedStorage, index: Any) -> Any:
        if isinstance(index, slice) and self.device.type == "cuda":
            torch.ops.anydevice.settle_storage(whole(self))
        return item(self, index)

    yield torch.UntypedStorage, "__getitem__", getitem
    yield torch.UntypedStorage, "_share_cuda_", share
    yield torch.UntypedStorage, "_new_shared_cuda", classmethod(receive)
    yield torch.UntypedStorage, "_release_ipc_counter_cuda", classmethod(release)
    legacy, versioned = _settled(torch._C._to_dlpack), _settled(torch._C._to_dlpack_versioned)
    for owner, name in ((torch._C, "_to_dlpack"), (torch.utils.dlpack, "to_dlpack")):
        yield owner, name, legacy
    yield torch, "to_dlpack", legacy
    yield torch._C, "_to_dlpack_versioned", versioned


def send_events() -> None:
    """torch.multiprocessing knows the class of events that there was when it was imported."""
    import torch.multiprocessing.reductions

    module: Any = torch.multiprocessing.reductions
    older = getattr(module, "reduce_event", None)  # before torch 2.15
    ForkingPickler.register(torch.cuda.Event, older or module._reduce_event)


def share(self: torch.UntypedStorage) -> tuple[Any, ...]:
    """Device, handle, size, offset, the counter of receivers, and the event to wait for."""
    if self.device.type != "cuda":
        raise RuntimeError("_share_cuda_: only available on CUDA")
    device = self.device.index
    if self.nbytes() == 0:
        return (device, None, 0, 0, None, 0, None, None)
    handle, offset, receivers = torch.ops.anydevice.send_storage(whole(self))
    if not system.LINUX:
        _remove_at_the_end(handle)
    name = handle.encode()
    return (device, name, self.nbytes(), offset, name, receivers, NO_EVENT, False)


def receive(
    cls: type,
    device: int,
    handle: bytes,
    size: int,
    offset: int,
    counter: bytes,
    receivers: int,
    event: bytes,
    event_sync_required: bool,
) -> torch.UntypedStorage:
    """The same memory in this process."""
    _let_go_at_the_end()
    arguments = (handle.decode(), offset, receivers, size, device)
    received: torch.Tensor = torch.ops.anydevice.receive_storage(*arguments)
    return received.untyped_storage()


def release(cls: type, counter: bytes, receivers: int) -> None:
    """Sent once more to one who has it: the sender need not wait for this one."""
    torch.ops.anydevice.release_unreceived(counter.decode(), receivers)


@cache
def _let_go_at_the_end() -> None:
    """A process that ends frees few of its tensors; without this their senders would wait on."""

    def arrange(_: object) -> None:
        Finalize(None, torch.ops.anydevice.let_go_of_all, exitpriority=0)

    arrange(None)
    # A child forgets what was arranged while its arguments arrived, before it began.
    register_after_fork(arrange, arrange)


@cache
def _remove_at_the_end(file: str) -> None:
    """A process that ends by os._exit, as a run of a sweep does, leaves it to us."""
    Finalize(None, Path(file).unlink, (True,), exitpriority=0)


def _settled(export: Any) -> Any:
    """DLPack hands out addresses, as slices do: what is sent later must not move then."""

    def exported(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            torch.ops.anydevice.settle_storage(tensor)
        return export(tensor, *arguments, **options)

    return exported
