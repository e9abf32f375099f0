"""A compiled graph as one op of PyTorch, which dispatch modes see and Dynamo can trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from torch.fx import GraphModule
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from anydevice.virtual.compiled.names import inductor_names

Run = Callable[..., Any]
WANTED = "wrap_inductor_compiled_regions"  # Inductor's name for it


@contextmanager
def as_one_op(module: GraphModule, name: str | None) -> Iterator[Callable[[Run], Run]]:
    """How Inductor is asked to show the graph; what is compiled inside the block is not shown.

    The graph is kept as it was before the block: a mode of fake tensors calls it.
    """
    names = inductor_names()
    asked = getattr(names.config, WANTED, False)
    if not asked or not hasattr(names.wrap, "InductorCompiledCallable"):
        yield _as_it_is
        return
    graph = deepcopy(module)
    for node in graph.graph.nodes:
        node.meta.clear()
    with names.config.patch({WANTED: False}):
        yield lambda run: _shown(run, graph, name)


def _as_it_is(run: Run) -> Run:
    return run


def _shown(run: Run, graph: GraphModule, name: str | None) -> Run:
    wrap = inductor_names().wrap
    region = wrap.InductorCompiledCallable(run, graph, compile_region_name=name)
    named = {"name": name} if name else {}

    def called(inputs: Any) -> Any:
        if is_in_torch_dispatch_mode():
            return wrap.inductor_compiled_code(region, inputs, **named)
        return run(inputs)

    called._boxed_call = True  # type: ignore[attr-defined]
    return called
