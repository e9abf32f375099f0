"""A graph of a GPU, moved to the host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true as known
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from anydevice.virtual.compiled.host_bytes import read_as, to_host
from anydevice.virtual.compiled.names import inductor_names

# Note [The strides of the card]
# A graph was traced with the strides of the card's kernels, and a later view in it may need them.
# The host's kernels may choose others: oneDNN's convolutions do. What differs is laid out as on the
# card before it is used.


def is_cuda(value: Any) -> bool:
    """Whether it is a tensor on a GPU, or a node of a graph that gives one."""
    if isinstance(value, Node):
        value = value.meta.get("val")
    return isinstance(value, Tensor) and value.device.type == "cuda"


def moved(module: GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Moves the graph to the host; the inputs as the compiler sees them there."""
    for node in module.graph.nodes:
        node.args = tree_map_only(torch.device, _host_device, node.args)
        node.kwargs = tree_map_only(torch.device, _host_device, dict(node.kwargs))
        if node.op == "get_attr":
            constant = getattr(module, str(node.target), None)
            if isinstance(constant, Tensor) and constant.is_cuda:
                with _disable_current_modes():
                    setattr(module, str(node.target), to_host(constant.detach()))
    module.recompile()
    values = (value for node in module.graph.nodes for value in tree_leaves(node.meta.get("val")))
    mode: Any = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), None)
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        hosts = [_fake_on_host(each) for each in inputs]
    symbols = mode.shape_env
    with (
        symbols.ignore_fresh_unbacked_symbols() if symbols else nullcontext(),
        patch.object(mode, "allow_non_fake_inputs", True),  # constants
    ):
        computed = _AsOnTheCard(module, mode)
        computed.propagate_dont_convert_inputs(*hosts)
    for node, laid_out in computed.otherwise.items():
        _lay_out(module, node, laid_out)
    module.recompile()
    return hosts


def _host_device(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "cuda" else device


def _fake_on_host(value: Any) -> Any:
    if not is_cuda(value):
        return value
    host = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return read_as(host, value)


class _AsOnTheCard(FakeTensorProp):
    """Computes what the nodes give on the host; `otherwise` has those with other strides there."""

    def __init__(self, module: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module, mode)
        self.otherwise: dict[Node, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        on_card: Any = n.meta.get("val")
        result = super().run_node(n)
        if n.op != "call_function" or not isinstance(result, Tensor) or not is_cuda(on_card):
            return result
        if _strides_are_equal(result, on_card):
            return result
        with self._mode:
            laid_out = _fake_on_host(on_card)
        self.otherwise[n] = laid_out
        return laid_out


def _strides_are_equal(one: Tensor, other: Tensor) -> bool:
    """As far as they say where elements lie: a dimension of size 1 may have any."""
    return one.dim() == other.dim() and all(
        known(size == 1) or known(mine == its)
        for size, mine, its in zip(other.shape, one.stride(), other.stride(), strict=True)
    )


def _lay_out(module: GraphModule, node: Node, laid_out: Tensor) -> None:
    """What uses the node gets its result with these strides."""
    graph, layout = module.graph, inductor_names().force_stride_order
    with graph.inserting_before(node.next):
        strides: Any = laid_out.stride()
        if hasattr(graph, "materialize_symints"):  # torch 2.13
            strides = graph.materialize_symints(strides)
        copy = graph.call_function(layout, (node, strides))
    copy.meta.update({**node.meta, "val": laid_out})
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
