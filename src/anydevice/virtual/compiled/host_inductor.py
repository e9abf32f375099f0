"""Inductor for virtual GPUs that compute: its code for the CPU, on the GPU's own bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from anydevice.notices import say_once
from anydevice.virtual.compiled import graph_trees, regions
from anydevice.virtual.compiled.configured import configured, with_changes
from anydevice.virtual.compiled.host_bytes import placed, to_host
from anydevice.virtual.compiled.moved import is_cuda, moved
from anydevice.virtual.compiled.names import configuration, inductor_names

# Note [A compiled program on a GPU that computes]
# Dynamo and AOTAutograd see CUDA tensors: graph breaks, guards, recompilations and errors are those
# of a card, and what is saved for backward lies on the GPU. Each graph of ops that is left goes to
# Inductor's C++ for the CPU. It runs on host tensors that are other names for the same bytes
# (`to_host`); what its wrapper allocates lies on the virtual GPU, so that memory is counted.
#
# A graph with an op that the CPU lacks (CUDA's attention kernels), that draws random numbers (they
# stay those of the card's generator), communicates, is of another library, or on a stream of the
# program's own, runs op by op on the virtual GPU. So does one of several GPUs, and so do all where
# there is no C++ compiler.

CPP = (
    "torch.compile compiles for the CPU on virtual GPUs, which takes a while the first time; "
    "ANYDEVICE_COMPILE=eager runs the program as it is written."
)
WITHOUT_COMPILER = "torch.compile: without a C++ compiler, graphs run op by op on virtual GPUs."
RESULTS = ("example_value", "val")  # of a node of Dynamo's, and of AOTAutograd's
OWN = ("aten", "prims", "inductor")  # namespaces of ops that Inductor knows


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What Inductor is given; MissingNameError if it has other names."""
    names = inductor_names()
    changes = configuration(with_values=True)
    yield names.guards, "_empty_strided_cpu", _allocating(names.guards._empty_strided_cpu)
    yield names.compiling, "compile_fx", _uncached(configured(names.compile_fx, changes))
    yield names.compiling, "select_decomp_table", written_otherwise
    yield names.compiling, "_compile_fx_inner", with_changes(_inner, changes)
    yield from graph_trees.attributes(_played)


def written_otherwise() -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions, but of ops that draw: another op would draw other numbers.

    Inductor's cache keeps a graph under the name of this function.
    """
    table = inductor_names().decompositions
    return {op: written for op, written in table.items() if not _draws(op)}


def _draws(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def _uncached(compile_fx: Callable[..., Any]) -> Callable[..., Any]:
    """What `_inner` returns cannot be kept in AOTAutograd's cache; a graph of the host is."""

    def compiled(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        if not _is_of_a_gpu(model, inputs):
            return compile_fx(model, inputs, *arguments, **options)
        with inductor_names().functorch.patch(enable_autograd_cache=False):
            return compile_fx(model, inputs, *arguments, **options)

    return compiled


def _is_of_a_gpu(model: Any, inputs: Any) -> bool:
    """Whether a program's graph may have tensors on a GPU: also if that cannot be seen."""
    if not isinstance(model, GraphModule):
        return True
    given = tree_leaves([inputs, list(model.parameters()), list(model.buffers())])
    graphs = (each.graph for each in model.modules() if isinstance(each, GraphModule))
    of_nodes = (leaf for graph in graphs for node in graph.nodes for leaf in _leaves(node))
    return any(is_cuda(each) or _names_a_gpu(each) for each in chain(given, of_nodes))


def _leaves(node: Node) -> list[Any]:
    """What a node of Dynamo's, or of AOTAutograd's, is given and gives."""
    return tree_leaves([node.args, node.kwargs, [node.meta.get(key) for key in RESULTS]])


def _names_a_gpu(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value).startswith("cuda")


# ---- compiling ----


def _inner(module: GraphModule, inputs: Sequence[Any], *named: Any, **options: Any) -> Any:
    """A graph of ops, compiled; `named` is what Inductor calls the region that it is of."""
    names = inductor_names()
    values = (each for node in module.graph.nodes for each in _values(node))
    gpus = {value.device for value in values if is_cuda(value)}
    if not gpus:
        return names.compile_inner(module, inputs, *named, **options)
    name = named[0] if named else options.get("compile_region_name")
    with regions.as_one_op(module, name) as shown:
        return shown(_boxed(_compiled(module, inputs, gpus, options)))


def _compiled(
    module: GraphModule, inputs: Sequence[Any], gpus: set[torch.device], options: dict[str, Any]
) -> graph_trees.Run:
    """What runs a graph on GPUs: Inductor's code for the host, or the graph's ops one by one."""
    names = inductor_names()
    in_graphs = graph_trees.wrapper(module, options)
    if len(gpus) > 1 or _stays_on_the_card(module) or not _has_compiler():
        _cast_by_kernels(module)
        return in_graphs(lambda given: module(*given))
    say_once(CPP)
    cuda = [is_cuda(value) for value in tree_leaves(_output(module).args[0], is_leaf=_is_value)]
    hosts = moved(module, inputs)
    options["cudagraphs"] = names.Box(False)
    compiled = names.compile_inner(module, hosts, **options)
    return in_graphs(lambda given: _run(compiled, given, cuda, *gpus))


def _played(node: Any, inputs: list[Any], recorded: bool) -> list[Any]:
    """In place of a CUDA graph."""
    results: list[Any] = node.wrapped_function.model(inputs)
    return results


@cache
def _has_compiler() -> bool:
    try:
        inductor_names().compiler()
    except Exception:  # a type of Inductor
        say_once(WITHOUT_COMPILER)
        return False
    return True


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """As AOTAutograd calls it, with a list, which is emptied; a program may give a tuple."""

    def called(given: Sequence[Any]) -> Any:
        own = list(given)
        if isinstance(given, list):
            given.clear()
        return run(own)

    called._boxed_call = True  # type: ignore[attr-defined]
    return called


def _values(node: Node) -> list[Any]:
    return tree_leaves(node.meta.get("val"))


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Node)


def _output(module: GraphModule) -> Node:
    last: Node = list(module.graph.nodes)[-1]
    return last


def _stays_on_the_card(module: GraphModule) -> bool:
    """Whether the graph has an op that Inductor's code for the CPU cannot stand for."""
    return any(
        not _is_of_the_host(node.target)
        for node in module.graph.nodes
        if node.op == "call_function" and not _is_python(node.target)
    ) or any(node.op == "call_module" or _is_on_a_stream(node) for node in module.graph.nodes)


def _cast_by_kernels(module: GraphModule) -> None:
    """For a graph that runs op by op: Inductor's op is Python, and vmap runs it for each number."""
    slow, quick = torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default
    for part in (each for each in module.modules() if isinstance(each, GraphModule)):
        for node in part.graph.find_nodes(op="call_function", target=slow):
            given, dtype = node.args
            node.target, node.args, node.kwargs = quick, (given,), {"dtype": dtype}
        part.recompile()


def _is_on_a_stream(node: Node) -> bool:
    """Of the program's own: Inductor's wrapper for the CPU has no streams."""
    return "stream" in (node.meta.get("custom") or ())


def _is_python(target: Any) -> bool:
    """operator.getitem, arithmetic on sizes."""
    return not isinstance(target, torch._ops.OperatorBase)


def _is_of_the_host(op: Any) -> bool:
    if not isinstance(op, torch._ops.OpOverload) or op.namespace not in OWN:
        return False
    if _draws(op):
        return False
    name: str = op._name
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
    has_kernel = any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys)
    return has_kernel or op.is_view or torch.Tag.pointwise in op.tags or op.namespace != "aten"


# ---- running ----

_running = threading.local()


@contextmanager
def _on_the_card() -> Iterator[None]:
    """Inside the block, what a generated wrapper allocates lies on the virtual GPU."""
    before, _running.device = getattr(_running, "device", None), torch.cuda.current_device()
    try:
        yield
    finally:
        _running.device = before


def _allocating(empty_strided: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def allocate(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        device = getattr(_running, "device", None)
        if device is None:
            return empty_strided(size, stride, dtype)
        return to_host(torch.empty_strided(size, stride, dtype=dtype, device=f"cuda:{device}"))

    return allocate


def _run(
    compiled: Callable[..., Any], given: list[Any], cuda: list[bool], gpu: torch.device
) -> Any:
    with torch.cuda.device(gpu), _on_the_card():
        hosts = tree_map(lambda each: to_host(each) if is_cuda(each) else each, given)
        given.clear()
        results = compiled(hosts)
        made: dict[int, Tensor] = {}
        return [placed(each, there, made) for each, there in zip(results, cuda, strict=True)]
