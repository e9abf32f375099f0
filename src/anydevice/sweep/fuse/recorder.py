"""Records the ops of a function once for each shape, and replays them without their Python code."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


class Recorder:
    """Calls `function(weights, others, batch, dims)` by the ops that it is made of."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._recorded: dict[Any, fx.GraphModule] = {}

    @torch.no_grad()
    def __call__(self, weights: Any, others: Any, batch: Any, dims: int | None) -> Any:
        """What the function returns; with new shapes, it is called and recorded."""
        shapes = (dims, *(part.shape for part in tree_leaves(batch) if isinstance(part, Tensor)))
        if shapes not in self._recorded:
            self._recorded[shapes] = self._record(weights, others, batch, dims)
        return self._recorded[shapes](weights, others, batch)

    def _record(self, weights: Any, others: Any, batch: Any, dims: int | None) -> fx.GraphModule:
        # Recording computes, and so would change what the function changes in place.
        aside = {name: tensor.clone() for name, tensor in others.items()}

        @torch.enable_grad()
        def function(weights: Any, others: Any, batch: Any) -> Any:
            return self.function(weights, others, batch, dims)

        graph: fx.GraphModule = make_fx(function)(weights, aside, batch)
        return without_idle_ops(graph)


def without_idle_ops(graph: fx.GraphModule) -> fx.GraphModule:
    """Removes ops whose result is their argument."""
    for node in graph.graph.nodes:
        same = node.target in (aten.detach.default, aten.alias.default)
        once = node.target is aten.mul.Scalar and node.args[1] == 1
        if same or once or (node.target is aten.view.default and _same_shape(node)):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    _transpose_early(graph.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _transpose_early(graph: fx.Graph) -> None:
    """`(a @ b)ᵀ` becomes `bᵀ @ aᵀ`: gradients lie in memory as their weights do."""
    for node in graph.find_nodes(op="call_function", target=aten.transpose.int):
        product = node.args[0]
        plain = isinstance(product, fx.Node) and product.target is aten.bmm.default
        if plain and len(product.users) == 1 and node.args[1:] == (1, 2):
            with graph.inserting_before(node):
                a, b = (
                    graph.call_function(aten.transpose.int, (each, 1, 2)) for each in product.args
                )
                node.replace_all_uses_with(graph.call_function(aten.bmm.default, (b, a)))
            graph.erase_node(node)


def _same_shape(node: fx.Node) -> bool:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = source.meta.get("val"), node.meta.get("val")
    return before is not None and after is not None and before.shape == after.shape
