"""CUDA graph trees without CUDA graphs: which results a later run of a graph writes over."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from anydevice.virtual import core
from anydevice.virtual.compiled.names import inductor_names

# Note [CUDA graph trees without CUDA graphs]
# With mode="reduce-overhead", results lie in the memory of CUDA graphs, which the next step uses
# again. Inductor's manager decides when a step begins (another call of a compiled function with no
# backward pending, or torch.compiler.cudagraph_mark_step_begin). It runs a function twice before it
# replays it, and then frees what the program still holds of the step before: a later use is an
# error, with the line that made it.
#
# That manager runs here as it is. The nodes of its trees are ours: nothing is captured, so a node
# calls the function each time, and only keeps what the manager asks for. A replay gives new
# tensors here; on a card it writes over those of the last replay, without an error.

Run = Callable[[list[Any]], Any]
Play = Callable[[Any, list[Any], bool], list[Any]]  # of a node, inputs, whether it was recorded


def attributes(play: Play) -> Iterator[tuple[Any, str, Any]]:
    """What the manager is given: nodes that call `play`."""
    names = inductor_names()
    names.forget_trees()
    for base, name in (names.Warmup, "CUDAWarmupNode"), (names.Recorded, "CUDAGraphNode"):
        members = {"play": staticmethod(play), "bind": inspect.signature(base).bind}
        yield names.trees, name, type(name, (Visit, base), members)
    yield names.Manager, "dealloc_current_path_weakrefs", _end
    yield names.Manager, "apply_checkpoint_execution_state_in_allocator", _nothing
    if hasattr(names.Manager, CLONES):
        yield names.Manager, CLONES, _nothing


def wrapper(module: GraphModule, options: dict[str, Any]) -> Callable[[Run], Run]:
    """Puts a compiled graph of ops into a CUDA graph, if one is asked for and a card could."""
    names = inductor_names()
    asked = options.get("cudagraphs")
    if not (names.config.triton.cudagraphs if asked is None else asked):
        return _as_it_is
    devices = _devices(module)
    backward = bool(options.get("is_backward"))
    if reason := _why_not(module, devices):
        if asked is not None:
            names.Box.disable(asked)  # for the backward pass, too
        names.graphs.log_cudagraph_skip_and_bump_counter(reason)
        return _ends_the_forward_pass if backward else _as_it_is
    made = {
        "static_input_idxs": tuple(options.get("static_input_idxs") or ()),
        "device_index": next(each.index for each in devices if each.type == "cuda"),
        "stack_traces": _lines(module),
        "is_backward": backward,
        "is_inference": bool(options.get("is_inference")),
        "placeholders": tuple(names.graphs.get_placeholder_info(module.graph)),
        "mutated_input_idxs": tuple(_mutated(module)),
    }
    return lambda run: names.cudagraphify(run, **made)


def _as_it_is(run: Run) -> Run:
    return run


def _ends_the_forward_pass(run: Run) -> Run:
    """A backward pass without graphs: the next call of the function may begin a step."""

    def ran(inputs: list[Any]) -> Any:
        manager = inductor_names().manager(torch.cuda.current_device(), create_if_none_exists=False)
        if manager is not None:
            manager.set_to_running_backward()
        return run(inputs)

    return ran


def _devices(module: GraphModule) -> dict[torch.device, Node]:
    """The devices of the graph's tensors, each with one of its nodes."""
    found: dict[torch.device, Node] = {}
    for node in module.graph.nodes:
        for each in tree_leaves(node.meta.get("val")):
            if isinstance(each, Tensor):
                found.setdefault(each.device, node)
    return found


def _why_not(module: GraphModule, devices: dict[torch.device, Node]) -> str | None:
    """What Inductor says why a card does not."""
    names = inductor_names()
    if not names.config.graph_partition:
        node = names.incompatible(module)
        if node is not None:
            return f"disabling cudagraphs due to incompatible op {node.target}"
    reason: str | None = names.graphs.check_multiple_devices_or_any_cpu_nodes(dict(devices))
    return reason


def _lines(module: GraphModule) -> list[str | None]:
    """Which lines of the program made the results."""
    output = next(iter(reversed(module.graph.nodes)))
    kept = output.meta.get("output_stack_traces")
    given = output.args[0]
    return kept or [each.stack_trace if isinstance(each, Node) else None for each in given]


def _mutated(module: GraphModule) -> Iterator[int]:
    """The places of the inputs that the graph writes to."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    written = {each for node in module.graph.nodes for each in _written(node)}
    return (place for place, node in enumerate(inputs) if node in written)


def _written(node: Node) -> Iterator[Any]:
    schema = getattr(node.target, "_schema", None)
    if node.op == "call_function" and schema is not None and schema.is_mutable:
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield value


CLONES = "_clone_current_path_live_user_visible_outputs"  # of torch 2.14 and newer


def _nothing(manager: Any) -> None:
    """There is no memory of graphs to restore; what would be cloned is not written over."""


def _end(manager: Any) -> None:
    """The step is over: what is left of its results cannot be used any more."""
    names = inductor_names()
    if getattr(names.config.triton, "cudagraph_trees_generation_cloning", None):
        return
    for node in manager.current_node._path_from_root:
        mode = manager.id_to_mode[node.wrapped_function.id]
        for result, line in zip(node.outputs_weakrefs, node.stack_traces or (), strict=False):
            if result is not None and (storage := result()):
                message = _overwritten(line, names.trees.CompilationMode.BACKWARD is mode)
                core.library().anydevice_invalidate(storage, message.encode())
                result.is_over = True


def _overwritten(line: str | None, of_backward: bool) -> str:
    """The manager's message."""
    write = inductor_names().overwritten
    known = "is_grad_output" in inspect.signature(write).parameters
    text: str = write(line, **({"is_grad_output": of_backward} if known else {}))
    return text


class Result:
    """A result's storage, as long as the program holds it."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._reference: Any = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._address = storage.data_ptr()
        self.is_over = False

    def __call__(self) -> int | None:
        """Its number; None once it is gone."""
        gone = self.is_over or self._reference.expired()
        return None if gone else self._reference.cdata

    def data_ptr(self) -> int:
        """Where it is, or was."""
        return self._address


@dataclass(frozen=True)
class Recording:
    """What has to be the same for a recorded graph to be replayed."""

    static: dict[int, int]  # addresses, by the place among the inputs
    managed: dict[int, tuple[int, int]]  # which results of earlier graphs are inputs
    dead: frozenset[tuple[int, int]]  # which of them were gone


class Visit:
    """A run of a function, in the manager's tree."""

    play: Play
    bind: Callable[..., inspect.BoundArguments]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        given = type(self).bind(*arguments, **named).arguments
        self.wrapped_function = given["wrapped_function"]
        self.above, self.id = given["parent"], given["id"]
        self.device_index, self.cuda_graphs_pool = given["device_index"], given["cuda_graphs_pool"]
        self.stack_traces: Sequence[str | None] | None = given["stack_traces"]
        self.outputs_weakrefs: list[Result | None] = []
        self.children: dict[Any, list[Any]] = defaultdict(list)
        self.recording = self._as_recorded(given["inputs"]) if "inputs" in given else None

    @property
    def parent(self) -> Any:
        """The node before it."""
        return self.above

    @property
    def _path_from_root(self) -> Iterator[Any]:
        if self.above is not None:
            yield from self.above._path_from_root
        yield self

    def path_live_weakrefs(self) -> Iterator[Result]:
        """The results of this path that the program holds."""
        for node in self._path_from_root:
            yield from (each for each in node.outputs_weakrefs if each and each())

    def all_outputs_are_dead(self) -> bool:
        """Whether it holds none."""
        return next(self.path_live_weakrefs(), None) is None

    def follows(self, tensor: Tensor) -> bool:
        """Whether it is a result of this path."""
        address = _address(tensor)
        return any(each.data_ptr() == address for each in self.path_live_weakrefs())

    _is_cuda_graph_recorded_tensor = follows

    # ---- run ----

    def run(self, inputs: list[Any]) -> list[Any]:
        """Calls the function."""
        function = self.wrapped_function
        managed = {each.data_ptr() for each in self.path_live_weakrefs()}
        other = {_address(each) for each in (*inputs, *function.constants)} - managed
        results = type(self).play(self, inputs, self.recording is not None)
        self.outputs_weakrefs = [_result(each, other) for each in results]
        return results

    run_first_inputs = run

    # ---- recorded ----

    def _results_before(self) -> dict[tuple[int, int], Result]:
        path = self.above._path_from_root if self.above is not None else ()
        return {
            (depth, place): each
            for depth, node in enumerate(path)
            for place, each in enumerate(node.outputs_weakrefs)
            if each is not None
        }

    def _as_recorded(self, inputs: list[Any]) -> Recording:
        static = {place: _address(inputs[place]) for place in self._static(inputs)}
        before = self._results_before()
        where = {each.data_ptr(): at for at, each in before.items() if each()}
        managed = {
            place: where[address]
            for place, each in enumerate(inputs)
            if (address := _address(each)) in where
        }
        dead = frozenset(at for at, each in before.items() if not each())
        return Recording({k: v for k, v in static.items() if k not in managed}, managed, dead)

    def _static(self, inputs: list[Any]) -> Iterator[int]:
        for place in self.wrapped_function.static_input_idxs:
            if isinstance(inputs[place], Tensor):
                yield place

    def check_invariants(self, inputs: list[Any]) -> tuple[Any, Callable[[], str]]:
        """Whether the graph that was recorded can be replayed with these inputs."""
        status = inductor_names().trees.CheckInvariantStatus
        now, then = self._as_recorded(inputs), self.recording
        assert then
        found = status.SUCCESS
        if not then.managed.items() <= now.managed.items():
            found = status.CudagraphManagedIdxMismatch
        elif not then.dead <= now.dead:
            found = status.ExpectedDeadIndicesBeforeGraphMismatch
        elif now.static != then.static:
            found = status.StaticInputIdxMismatch
        return found, lambda: str(found)

    def add_child(self, function: Any, node: Any) -> None:
        """A graph that was recorded after this one."""
        self.children[function].append(node)

    def clear_path_state(self) -> None:
        """Nothing is kept."""

    def remove_node_cached_tensors(self) -> None:
        """Nothing is cached."""

    remove_path_cached_tensors = remove_node_cached_tensors


def _result(value: Any, other: set[int]) -> Result | None:
    """Unless its memory is that of an input."""
    address = _address(value)
    return Result(value) if address and address not in other else None


def _address(value: Any) -> int:
    is_there = isinstance(value, Tensor) and value.is_cuda
    return value.untyped_storage().data_ptr() if is_there else 0
