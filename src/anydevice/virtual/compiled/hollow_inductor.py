"""Inductor for hollow GPUs: it generates a card's code, whose kernels are reported, not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from anydevice.virtual.compiled import ahead, density, graph_trees, starting
from anydevice.virtual.compiled.configured import configured, with_changes
from anydevice.virtual.compiled.launches import (
    COMPILED,
    GRAPH,
    REPLAY,
    REPLAYED,
    Launch,
    Product,
    inside,
    report,
    within,
)
from anydevice.virtual.compiled.names import configuration, inductor_names
from anydevice.virtual.surface import pools

# Note [Inductor without a card]
# Dynamo, AOTAutograd, the partitioner and Inductor's scheduling ask a card for its properties,
# which a hollow GPU has. What Inductor generates is a wrapper in Python: it allocates, launches
# kernels and calls ops of PyTorch (matrix products). The wrapper runs as it is, so the allocator
# sees what it would see on a card. A kernel's source is not compiled: `Kernel` stands for it, and
# reports each launch with the bytes that Inductor counted for the kernel (`kernel_num_gb`).
#
# What Inductor would decide by a benchmark, it decides by its heuristics. CUDA graphs are not
# captured (graph_trees.py): the wrapper runs, from the second time on with copies of inputs that
# move, and its launches are reported as those of a replay. What it allocates lies in a private
# pool, as in a graph. Constants that the compiler computes in advance are computed on the host,
# since a hollow GPU has no values.


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What Inductor is given; MissingNameError if it has other names."""
    names = inductor_names()
    yield names.AsyncCompile, "triton", _kernel
    yield names.guards, "_empty_strided_cuda", empty_strided
    yield names.CompiledGraph, "__call__", _entering(names.CompiledGraph.__call__)
    changes = configuration()
    yield names.compiling, "compile_fx", configured(names.compile_fx, changes)
    yield names.compiling, "_compile_fx_inner", with_changes(names.compile_inner, changes)
    yield from graph_trees.attributes(_replayed)
    yield names.Folder, "__init__", _on_host(names.Folder.__init__)
    yield names.Folder, "_deduce_value", _on_host(names.deduced)
    yield from starting.keys(names)
    yield from ahead.attributes()


def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    """What a generated wrapper allocates with."""
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


# ---- compiling ----


class OnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is made for a GPU is made on the host: constants that the compiler folds have values."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the op there."""
        args, kwargs = tree_map_only(torch.device, _host, (args, kwargs or {}))
        return op(*args, **kwargs)


def _host(device: torch.device) -> torch.device:
    return torch.device("cpu") if device.type == "cuda" else device


def _on_host(fold: Callable[..., Any]) -> Callable[..., Any]:
    def folded(self: Any, *arguments: Any, **options: Any) -> Any:
        with OnHost():  # type: ignore[no-untyped-call]
            result = fold(self, *arguments, **options)
        has_no_values = isinstance(result, Tensor) and result.is_cuda
        return self.unknown_value if has_no_values else result

    return folded


def wants_autotuning(mode: str | None, options: Any) -> bool:
    """Whether torch.compile was asked to choose by benchmarks."""
    return _wants("max_autotune", mode, options)


def wants_cuda_graphs(mode: str | None, options: Any) -> bool:
    """Whether torch.compile was asked for CUDA graphs."""
    return _wants("triton.cudagraphs", mode, options)


def _wants(name: str, mode: str | None, options: Any) -> bool:
    names = inductor_names()
    of_mode = names.modes().get(mode, {}) if mode and mode != "default" else {}
    chosen = {**of_mode, **(options or {})}
    return bool(chosen.get(name) or names.config.get_config_copy()[name])


# ---- running ----


def _entering(call: Callable[..., Any]) -> Callable[..., Any]:
    def entered(self: Any, inputs: Any) -> Any:
        first = next((each for each in inputs if isinstance(each, Tensor) and each.is_cuda), None)
        if first is not None:
            report(Launch("compiled graph", first.get_device(), kernels=0, host=GRAPH))
        with within(COMPILED):
            return call(self, inputs)

    return entered


def _replayed(node: Any, inputs: list[Any], recorded: bool) -> list[Any]:
    """In place of a CUDA graph, which reads its inputs where it found them when it was recorded."""
    function, device = node.wrapped_function, node.device_index
    static = frozenset(function.static_input_idxs)
    with _from_pool(device, node.cuda_graphs_pool):
        for place, each in enumerate(inputs):
            moves = isinstance(each, Tensor) and each.is_cuda and place not in static
            if recorded and moves and not node.follows(each):
                inputs[place] = _copied(each)
        report(Launch("CUDA graph", device, kernels=0, host=REPLAY))
        with within(REPLAYED):
            results: list[Any] = function.model(inputs)
    return results


@contextmanager
def _from_pool(device: int, pool: pools.PoolId) -> Iterator[None]:
    """Inside the block, this thread allocates from the pool that all CUDA graphs share."""
    with torch.cuda.device(device):
        pools.begin(device, pool)
        try:
            yield
        finally:
            pools.end(device, pool)


def _copied(tensor: Tensor) -> Tensor:
    size, stride = tensor.shape, tensor.stride()
    copy = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


_kernels: dict[str, Kernel] = {}


def _kernel(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
    if source_code not in _kernels:
        _kernels[source_code] = Kernel(kernel_name, source_code)
    return _kernels[source_code]


class Kernel:
    """A kernel that Inductor wrote; in place of its CachingAutotuner."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        signature = re.search(rf"def {re.escape(name)}\(([^)]*)\)", source)
        if signature is None:  # a kernel of the program's own
            signature = re.search(r"\n@triton\.jit\ndef \w+\(([^)]*)\)", source)
        listed = signature[1].split(",") if signature else []
        self.arguments = [each.partition(":")[0].partition("=")[0].strip() for each in listed]
        changed = re.search(r"'mutated_arg_names': \[([^\]]*)\]", source)
        self.changed = set(re.findall(r"'(\w+)'", changed[1])) if changed else set()
        self.counted = _figure("kernel_num_gb", source) * 1e9
        self.flops = _figure("kernel_flop", source)
        self._share = 0.0  # of its tensors' bytes that Inductor counts

    def run(self, *arguments: Any, stream: Any = None, **named: Any) -> None:
        """As the wrapper launches it."""
        given = {**dict(zip(self.arguments, arguments, strict=False)), **named}
        tensors = {name: each for name, each in given.items() if isinstance(each, Tensor)}
        writes = [each for name, each in tensors.items() if self._is_written(name)]
        reads = [each for name, each in tensors.items() if not name.startswith("out_ptr")]
        first = next(iter(tensors.values()), None)
        if first is None:
            return
        report(
            Launch(
                self.name,
                first.get_device(),
                tuple(reads),
                tuple(writes),
                self._bytes(reads, writes),
                self._products(tensors),
                host=inside() or COMPILED,
            )
        )

    def _is_written(self, name: str) -> bool:
        return name.startswith(("out_ptr", "in_out_ptr")) or name in self.changed

    def _bytes(self, reads: list[Tensor], writes: list[Tensor]) -> float:
        """Inductor's count; for other sizes than it was made for, in proportion."""
        whole = float(sum(each.nbytes for each in (*reads, *writes)))
        if not self.counted:
            return whole
        self._share = self._share or (self.counted / whole if whole else 1.0)
        return self._share * whole

    def _products(self, tensors: dict[str, Tensor]) -> tuple[Product, ...]:
        if "arg_Q" in tensors and "arg_K" in tensors:
            return density.attention(self.name, tensors)
        if not self.flops:
            return ()
        side = max(1, round((self.flops / 2) ** (1 / 3)))
        return (Product(1, side, side, side),)


def _figure(name: str, source: str) -> float:
    found = re.search(rf"'{name}': ([0-9.e+-]+)", source)
    return float(found[1]) if found else 0.0
