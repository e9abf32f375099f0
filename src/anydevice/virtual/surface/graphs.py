"""CUDA graphs: torch.cuda.CUDAGraph on virtual GPUs, which replays by computing again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from ctypes import c_int64
from pathlib import Path
from typing import Any

import torch

from anydevice.notices import say_once
from anydevice.virtual import core
from anydevice.virtual.surface import pools
from anydevice.virtual.surface.generators import is_same_state
from anydevice.virtual.surface.streams import cuda_error

MODES = ("default", "global", "thread_local", "relaxed")
NOT_REAL = (
    "the graph of a virtual GPU is a list of PyTorch's ops: there is no cudaGraph_t to return."
)


class Capture:
    """What one graph captured, the memory it took, and where."""

    def __init__(self, pool: pools.PoolId | None, generators: list[torch.Generator]) -> None:
        from anydevice.virtual.surface.recording import Recording

        self.place = _place()
        self.running = True
        device = self.place[0]
        self.states = _states([torch.cuda.default_generators[device], *generators])
        self.pool = pool if pool and any(pool) else pools.handle(user_created=False)
        self.recording = Recording(generators, self.pool)
        self.seeds = [_seed_and_offset(device) for _ in self.states]
        pools.begin(device, self.pool)
        core.library().anydevice_pinned_begin_pool(*map(c_int64, self.pool))
        core.library().anydevice_begin_capture()
        self.recording.begin()

    def end(self) -> bool:
        """Whether everything could be captured."""
        self.running = False
        whole = bool(core.library().anydevice_end_capture())
        self.recording.end()
        core.library().anydevice_pinned_end_pool(*map(c_int64, self.pool))
        pools.end(self.place[0], self.pool)
        return whole

    def __del__(self) -> None:
        if not hasattr(self, "recording"):
            return
        if self.running:  # the graph went away while it captured
            self.end()
        pools.release(self.place[0], self.pool)
        core.library().anydevice_pinned_release_pool(*map(c_int64, self.pool))


def _states(generators: list[torch.Generator]) -> list[torch.Generator]:
    """The states that the generators have now, each once: a generator may change its own."""
    states: list[torch.Generator] = []
    for generator in generators:
        state = generator.graphsafe_get_state()
        if not any(is_same_state(state, other) for other in states):
            states.append(state)
    return states


def _seed_and_offset(device: int) -> list[torch.Tensor]:
    """What a graph keeps of a generator on the device: two numbers, on the default stream."""
    before = torch.cuda.current_stream(device)
    torch.cuda.set_stream(torch.cuda.default_stream(device))
    try:
        with torch._C._DisableTorchDispatch():
            return [torch.empty(1, dtype=torch.int64, device="cuda") for _ in range(2)]
    finally:
        torch.cuda.set_stream(before)


class CudaGraphBase:
    """`torch._C._CUDAGraph` and `torch._C._acceleratorGraph`."""

    def __new__(cls, keep_graph: bool = False, *_: Any, **__: Any) -> Any:
        """A graph that nothing is captured in."""
        return super().__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self._generators: list[torch.Generator] = []
        self._capture: Capture | None = None
        self._keep_graph = keep_graph
        self._has_graph_exec = False

    def capture_begin(
        self, pool: pools.PoolId | None = None, capture_error_mode: str = "global"
    ) -> None:
        """From here on what the current stream does is recorded, until capture_end()."""
        if self._capture is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        if capture_error_mode not in MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                f"got {capture_error_mode}"
            )
        if is_capturing():
            raise cuda_error(
                401,
                "the operation cannot be performed in the present state",
                "cudaErrorIllegalState",
            )
        if _place()[1] == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, "
                "it's ok to replay them on the default stream.)"
            )
        self._capture = Capture(pool, self._generators)

    def capture_end(self) -> None:
        """Ends what capture_begin() began; tensors that were there before are as they were then."""
        CudaGraphBase.capture_end_pre(self)
        if not self._keep_graph:
            CudaGraphBase.instantiate(self)

    def capture_end_pre(self) -> None:
        """Its first step. torch 2.15 does the others in Python."""
        capture = self._capture
        if capture is None or not capture.running:
            raise RuntimeError("capture_end() called before capture_begin().")
        same_stream, whole = _place() == capture.place, capture.end()
        if not (same_stream and whole):
            self._capture = None
        if not same_stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if not whole:
            raise cuda_error(
                901,
                "operation failed due to a previous error during capture",
                "cudaErrorStreamCaptureInvalidated",
            )
        if not capture.recording.calls:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=3,
            )

    def capture_end_post(self) -> None:
        """There is no cudaGraph_t to destroy."""

    def _captured(self, otherwise: str) -> Capture:
        if self._capture is None or self._capture.running:
            raise RuntimeError(otherwise)
        return self._capture

    def instantiate(self) -> None:
        """Makes the graph ready for replay(): here there is nothing to prepare."""
        self._captured("capture_end() must have been called before calling instantiate")
        if self._has_graph_exec and not self._keep_graph:
            raise RuntimeError(
                "instantiate() is intended to be called by the user only when keep_graph=true"
            )
        self._has_graph_exec = True

    def replay(self) -> None:
        """Computes what was captured once more, into the same tensors."""
        capture = self._captured("Called CUDAGraph::replay without a preceding successful capture.")
        say_once("A CUDA graph of a virtual GPU is replayed op by op: it saves no time here.")
        with torch.cuda.device(capture.place[0]), pools.uncounted():
            capture.recording.replay()

    def reset(self) -> None:
        """Forgets what was captured."""
        self._capture = None
        self._has_graph_exec = False

    def pool(self) -> pools.PoolId:
        """What another graph's capture_begin() takes to share this one's memory."""
        return self._captured(
            "Called CUDAGraph::pool() without a preceding successful capture."
        ).pool

    def pools(self) -> list[pools.PoolId]:
        """Those whose memory the graph uses."""
        return [
            self._captured("Called CUDAGraph::pools() without a preceding successful capture.").pool
        ]

    def register_generator_state(self, generator: torch.Generator) -> None:
        """A generator besides the default ones that the graph draws from."""
        self._generators.append(generator)

    def enable_debug_mode(self) -> None:
        """The ops are kept in any case."""

    def debug_dump(self, path: str, **_: Any) -> None:
        """Writes the captured ops as a graph in DOT."""
        calls = self._capture.recording.calls if self._capture else []
        lines = [f'  {i} [label="{call.op}"];' for i, call in enumerate(calls)]
        lines += [f"  {i} -> {i + 1};" for i in range(len(calls) - 1)]
        Path(path).write_text("\n".join(["digraph {", *lines, "}", ""]), "utf-8")

    def raw_cuda_graph(self) -> int:
        """Refuses."""
        name = "cudaGraph_t"
        if not self._keep_graph:
            raise RuntimeError(
                f"You cannot access the raw {name} instance unless CUDAGraph was initialized with "
                "keep_graph=true"
            )
        self._captured(
            f"You cannot access the raw {name} instance until capture_end() has been called"
        )
        raise NotImplementedError(NOT_REAL)

    def raw_cuda_graph_exec(self) -> int:
        """Refuses."""
        if not self._has_graph_exec:
            raise RuntimeError(
                "You cannot access the raw cudaGraphExec_t instance until instantiate() has been "
                "called"
            )
        raise NotImplementedError(NOT_REAL)

    def begin_capture_to_if_node(self, predicate: torch.Tensor) -> None:
        """Refuses."""
        raise NotImplementedError(
            "conditional nodes of a CUDA graph decide on the device, and a virtual GPU has no "
            "device to decide on: capture each branch as a separate graph."
        )

    end_capture_to_conditional_node = begin_capture_to_if_node


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What torch 2.15 does with cuda.bindings on a cudaGraph_t."""
    module: Any = torch.cuda.graphs
    if hasattr(module, "_dump_graph_dot"):
        yield module.CUDAGraph, "debug_dump", CudaGraphBase.debug_dump


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {
        "_CUDAGraph": CudaGraphBase,
        "_acceleratorGraph": CudaGraphBase,
        "_cuda_isCurrentStreamCapturing": is_capturing,
    }


def is_capturing() -> bool:
    """Whether this thread captures a graph."""
    return bool(core.library().anydevice_capturing())


def _place() -> tuple[int, int]:
    library = core.library()
    device = library.anydevice_current_device()
    return device, int(library.anydevice_current_stream(device))
