"""torch.cuda._sanitizer: what it needs to know of memory that is used again.

Note [Memory that is used again]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The sanitizer forgets a tensor when its memory is freed. But the caching allocator hands the memory
out again at once, to the stream that it was allocated on, and waits for other streams only if
record_stream() has named them. So a kernel of another stream may still be reading while the next
tensor is written to. Here the sanitizer remembers: what other streams did with the last tensor at
an address, and record_stream() did not name, counts as an access to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anydevice.virtual import core


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """Where the sanitizer registers for memory, or has registered, it is given more to know."""
    import torch.cuda._gpu_trace as gpu_trace  # not before torch is whole

    for kind, choose in (("allocation", Memory.allocated), ("deallocation", Memory.freed)):
        registry: Any = getattr(gpu_trace, f"Memory{kind.title()}Callbacks")
        known = [_knowing_more(callback, choose) for callback in registry.callback_list]
        yield registry, "callback_list", known
        name = f"register_callback_for_memory_{kind}"
        yield gpu_trace, name, _registering(getattr(gpu_trace, name), choose)


def _registering(register: Any, choose: Any) -> Any:
    def register_callback(callback: Any) -> None:
        register(_knowing_more(callback, choose))

    return register_callback


def _knowing_more(callback: Any, choose: Any) -> Any:
    handler = getattr(callback, "__self__", None)
    if not hasattr(handler, "tensors_accessed"):
        return callback
    return choose.__get__(_memories.setdefault(id(handler), Memory(handler)))


class Memory:
    """What the sanitizer's handler knew of freed tensors."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._recorded: Any = core.library().anydevice_memory_recorded
        self._of_last: dict[int, tuple[list[Any], Any]] = {}  # reads and write, by address

    def freed(self, address: int) -> None:
        """Keeps the accesses that the handler forgets now."""
        known = self._handler.tensors_accessed.accesses.get(address)
        named = {int(stream) for stream in self._recorded().split()}
        if known is not None:
            reads = [access for access in known.reads if access.stream not in named]
            write = known.write if known.write and known.write.stream not in named else None
            self._of_last[address] = (reads, write)
        self._handler._handle_memory_deallocation(address)

    def allocated(self, address: int) -> None:
        """Gives them to the next tensor at the address."""
        self._handler._handle_memory_allocation(address)
        known = self._handler.tensors_accessed.accesses[address]
        known.reads, known.write = self._of_last.pop(address, ([], None))


_memories: dict[int, Memory] = {}  # by the handler's id: there is one, for good
