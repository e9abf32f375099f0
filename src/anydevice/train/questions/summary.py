"""What a network consists of: layers, shapes, parameters, work and memory, without running it.

Note [A summary runs nothing]
-----------------------------
The network is copied, with fake tensors for its parameters and buffers: PyTorch's FakeTensorMode
knows the shape, dtype and device of every result and computes none. So a summary takes no memory
and no random numbers, and the network, its hooks and its running statistics stay as they are. Lazy
layers take their sizes in the copy; there the tensors are on the device "meta", since an
uninitialised parameter cannot become a fake one.

What a layer keeps for the backward pass is seen by `saved_tensors_hooks`: each storage counts once,
and a parameter's not at all. The optimizer's state is that of a step over parameters on "meta".
"""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from rich.text import Text
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from anydevice.errors import UsageError
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, counted, size_text
from anydevice.train.copies import new_optimizer
from anydevice.train.data.rows import sample_count
from anydevice.train.loop.forward import answer
from anydevice.train.recipes import OptimizerLike, optimizer_of

Call = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Layer:
    """One module of a network, with all that is in it."""

    name: str
    kind: str
    depth: int
    parameters: int
    trainable: int
    device: str
    output: Any = None  # the shape, or several
    calls: int = 0
    flops: int = 0  # of a forward pass


@dataclass(frozen=True, repr=False)
class Summary(Shown):
    """The layers of a network and its totals; printed, or in a notebook, it is a table.

    Attributes:
        layers: Each module: name, kind, parameters, and with an example its output and FLOPs.
        parameters: How many numbers the network learns and keeps fixed.
        trainable: How many of them are trained.
        weight_bytes: Memory of parameters and buffers.
        flops: Of a forward pass of the example; multiplying and adding count as two. Only
            products, convolutions and attention are counted. None without an example.
        kept_bytes: What a forward pass keeps for the backward pass. None without an example.
        gradient_bytes: Memory of the gradients.
        optimizer_bytes: Memory of the optimizer's state; None where no optimizer is known.
        batch: The samples of the example.
    """

    layers: Sequence[Layer]
    parameters: int
    trainable: int
    weight_bytes: int
    gradient_bytes: int
    flops: int | None = None
    kept_bytes: int | None = None
    optimizer_bytes: int | None = None
    batch: int | None = None
    depth: int = 3
    about: str = field(default="", compare=False)

    @property
    def training_bytes(self) -> int | None:
        """Weights, gradients, optimizer and what is kept, together; `ad.plan` predicts the peak."""
        if self.kept_bytes is None:
            return None
        fixed = self.weight_bytes + self.gradient_bytes
        return fixed + self.kept_bytes + (self.optimizer_bytes or 0)

    def table(self) -> Table:
        """A row for each layer, down to `depth`."""
        ran = self.batch is not None
        columns = ["layer", *(["output"] if ran else []), "parameters", "trainable"]
        columns += [*(["FLOPs"] if ran else []), "device"]
        shown = [layer for layer in self.layers if layer.depth <= self.depth]
        rows: list[Sequence[str]] = [_row(layer, ran) for layer in shown]
        return Table(columns, rows, right=("parameters", "trainable", "FLOPs"))

    def _shown(self) -> Iterator[Table | Text]:
        if self.about:
            yield Text(self.about)
        yield self.table()
        fixed = self.parameters - self.trainable
        lines = [f"{counted(self.parameters, 'parameter')}, {fixed:,} of them not trained"]
        if self.flops is not None and self.batch is not None:
            lines.append(
                f"forward pass of {counted(self.batch, 'sample')}: {flops_text(self.flops)}"
            )
        parts = {"weights": self.weight_bytes, "gradients": self.gradient_bytes}
        others = {"optimizer": self.optimizer_bytes, "kept for backward": self.kept_bytes}
        parts |= {name: size for name, size in others.items() if size is not None}
        memory = " + ".join(f"{name} {size_text(size)}" for name, size in parts.items())
        total = self.training_bytes
        lines.append(f"memory: {memory}" + (f" = {size_text(total)}" if total else ""))
        yield Text("\n".join(lines))


def summary(
    network: nn.Module,
    example: Any = None,
    *,
    depth: int = 3,
    optimizer: OptimizerLike | None = None,
) -> Summary:
    """What a network consists of, with shapes, FLOPs and memory for an example batch.

    Nothing is computed: the network and the random state stay as they are, and the network may be
    larger than the memory.

    Args:
        network: Any `nn.Module`.
        example: A batch of inputs as the network takes them: a tensor, a tuple of several, or a
            dictionary. Without it, only parameters are listed.
        depth: How deep the table goes into modules of modules.
        optimizer: One whose state is counted as memory, or its name, such as "adam".

    Returns:
        The summary; print it, or read its attributes.

    Raises:
        UsageError: If the depth is below 1, or the shapes depend on values, such as of `.item()`.

    Example:
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> found = ad.summary(network, torch.randn(10, 4))
        >>> found.parameters, found.flops
        (67, 1120)
    """
    if not isinstance(network, nn.Module):
        raise UsageError(f"expected a network that is an nn.Module, got {type(network).__name__}.")
    if example is not None and not isinstance(example, (Mapping, Tensor)):
        example = (*example, None) if isinstance(example, (tuple, list)) else example
    return summarised(network, example, depth=depth, optimizer=optimizer)


def summarised(
    network: nn.Module,
    batch: Any,
    *,
    depth: int = 3,
    optimizer: OptimizerLike | None = None,
    call: Call = answer,
    autocast: Any = None,
    about: str = "",
) -> Summary:
    """As `summary`, for a batch that `call` gives to the network."""
    if not isinstance(depth, int) or depth < 1:
        raise UsageError(f"expected a depth of 1 or more, got {depth!r}.")
    network = getattr(network, "_orig_mod", network)  # of torch.compile
    ran = Ran() if batch is None else _run(network, batch, call, autocast or nullcontext())
    seen = ran.network if ran.network is not None and _has_lazy(network) else network
    layers = [_layer(name, module, network, ran) for name, module in seen.named_modules()]
    known = [p for p in seen.parameters() if not is_lazy(p)]
    trained = [p for p in known if p.requires_grad]
    held = [*known, *(b for b in seen.buffers() if not is_lazy(b))]
    return Summary(
        layers=layers,
        parameters=sum(p.numel() for p in known),
        trainable=sum(p.numel() for p in trained),
        weight_bytes=sum(t.nbytes for t in held),
        gradient_bytes=sum(t.nbytes for t in trained),
        flops=None if batch is None else ran.flops.get("", 0),
        kept_bytes=None if batch is None else ran.kept_bytes,
        optimizer_bytes=state_bytes(optimizer, trained),
        batch=None if batch is None else sample_count(batch),
        depth=depth,
        about=about,
    )


# ---- a run with fake tensors ----


class Ran:
    """What a run showed, by the modules' names."""

    def __init__(self) -> None:
        self.network: nn.Module | None = None
        self.outputs: dict[str, Any] = {}
        self.calls: dict[str, int] = {}
        self.flops: dict[str, int] = {}
        self.kept_bytes = 0


def _run(network: nn.Module, batch: Any, call: Call, autocast: Any) -> Ran:
    ran, counter = Ran(), FlopCounterMode(display=False)
    lazy = _has_lazy(network)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    ran.network = hollow = _without_values(network, None if lazy else mode)
    convert: Callable[[Tensor], Tensor] = _on_meta if lazy else mode.from_tensor
    inputs = tree_map_only(Tensor, convert, batch)
    hollow.train(sample_count(batch) > 1)  # batch norm cannot train on one sample
    for name, module in hollow.named_modules():
        _watch(name, module, ran, counter)
    try:
        with ExitStack() as stack:
            stack.enter_context(nullcontext() if lazy else mode)
            for context in (torch.enable_grad(), autocast, counter):
                stack.enter_context(context)
            stack.enter_context(_counting(hollow, ran))
            stack.enter_context(_unlogged())
            call(hollow, inputs)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise UsageError(
            "expected a network whose shapes follow from the shapes of its inputs, got one that "
            f"needs values ({error.args[0] if error.args else error}): leave the example out, "
            "ad.summary(network)."
        ) from error
    except UsageError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = tree_map_only(Tensor, lambda tensor: f"{list(tensor.shape)} {tensor.dtype}", batch)
        raise UsageError(
            f"expected an example that {type(network).__name__} takes, got {shapes}, with which "
            f"its forward pass ends in {type(error).__name__}: {error}"
        ) from error
    return ran


@contextmanager
def _unlogged() -> Iterator[None]:
    """Errors of fake tensors are logged by PyTorch with their traceback, and raised as well."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _without_values(network: nn.Module, mode: FakeTensorMode | None) -> nn.Module:
    """A copy with fake tensors, or on "meta"."""
    known: dict[int, Any] = {}
    for tensor in chain(network.parameters(), network.buffers()):
        known[id(tensor)] = mode.from_tensor(tensor) if mode else _on_meta(tensor)
    try:
        return copy.deepcopy(network, known)
    except Exception as error:
        raise UsageError(
            f"expected a network that copy.deepcopy can copy, got {type(network).__name__}, which "
            f"raises {type(error).__name__}: {error}"
        ) from error


def _on_meta(tensor: Tensor) -> Tensor:
    if is_lazy(tensor):
        lazy: Any = type(tensor)
        there: Tensor = lazy(requires_grad=tensor.requires_grad, device="meta")
        return there
    there = torch.empty_like(tensor, device="meta")
    return nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there


def _watch(name: str, module: nn.Module, ran: Ran, counter: FlopCounterMode) -> None:
    """Notes each call of a module of the copy: its outputs' shapes and its FLOPs."""
    before: list[int] = []

    def begins(*_: Any) -> None:
        before.append(counter.get_total_flops())

    def ends(_module: nn.Module, _inputs: Any, output: Any) -> None:
        ran.flops[name] = ran.flops.get(name, 0) + counter.get_total_flops() - before.pop()
        ran.calls[name] = ran.calls.get(name, 0) + 1
        ran.outputs.setdefault(name, shapes_of(output))

    module.register_forward_pre_hook(begins)
    module.register_forward_hook(ends)


@contextmanager
def _counting(network: nn.Module, ran: Ran) -> Iterator[None]:
    """Counts the storages that are kept for the backward pass."""
    own = {p.untyped_storage()._cdata for p in network.parameters() if not is_lazy(p)}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and storage._cdata not in kept:
            kept[storage._cdata] = tensor
            ran.kept_bytes += storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield


def shapes_of(output: Any) -> Any:
    """The shape of an output; a list of shapes if it consists of several tensors."""
    shapes = [list(leaf.shape) for leaf in tree_leaves(_plain(output)) if isinstance(leaf, Tensor)]
    return shapes[0] if len(shapes) == 1 else shapes


def _plain(output: Any) -> Any:
    """A dictionary with attributes, as of Hugging Face, as a dictionary."""
    return dict(output) if isinstance(output, Mapping) else output


def state_bytes(optimizer: OptimizerLike | None, trained: Sequence[Tensor]) -> int | None:
    """The memory of an optimizer's state: what it has, or would have after a first step."""
    try:
        if optimizer is None or not trained:
            return None
        if not isinstance(optimizer, Optimizer):
            own = nn.ParameterList([_with_gradient(parameter) for parameter in trained])
            optimizer = optimizer_of(optimizer, own)
        elif not optimizer.state:
            groups = [
                {**group, "params": [*map(_with_gradient, group["params"])]}
                for group in optimizer.param_groups
            ]
            optimizer = new_optimizer(type(optimizer), groups, optimizer.defaults)
        if not optimizer.state:
            optimizer.step()
    except UsageError:
        raise
    except Exception:  # one that looks at values, or is made in another way
        return None
    held = optimizer.state.values()
    return sum(t.nbytes for state in held for t in tree_leaves(state) if isinstance(t, Tensor))


def _with_gradient(parameter: Tensor) -> Tensor:
    there = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=True)
    there.grad = torch.empty_like(there)
    return there


# ---- rows ----


def _layer(name: str, module: nn.Module, network: nn.Module, ran: Ran) -> Layer:
    own = [p for p in module.parameters() if not is_lazy(p)]
    original = network.get_submodule(name)
    devices = dict.fromkeys(str(p.device) for p in original.parameters())
    return Layer(
        name=name,
        kind=type(original).__name__ if name not in ran.outputs else type(module).__name__,
        depth=name.count(".") + 1 if name else 0,
        parameters=sum(p.numel() for p in own),
        trainable=sum(p.numel() for p in own if p.requires_grad),
        device=", ".join(devices),
        output=ran.outputs.get(name),
        calls=ran.calls.get(name, 0),
        flops=ran.flops.get(name, 0),
    )


def _row(layer: Layer, ran: bool) -> list[str]:
    last = layer.name.rpartition(".")[2]
    name = f"{'  ' * layer.depth}{last} {layer.kind}".replace("  ", "· ") if last else layer.kind
    if layer.calls > 1:
        name += f" ×{layer.calls}"
    numbers = [f"{n:,}" if n else UNSET for n in (layer.parameters, layer.trainable)]
    shape = [UNSET if layer.output is None else str(layer.output)] if ran else []
    work = [flops_text(layer.flops) if layer.flops else UNSET] if ran else []
    return [name, *shape, *numbers, *work, layer.device or UNSET]


def flops_text(flops: float) -> str:
    """Operations: `flops_text(1.5e9) == "1.5 GFLOPs"`."""
    for unit in ("", "K", "M", "G", "T"):
        if flops < 1000:
            return f"{flops:.3g} {unit}FLOPs"
        flops /= 1000
    return f"{flops:.3g} PFLOPs"


def _has_lazy(network: nn.Module) -> bool:
    return any(map(is_lazy, chain(network.parameters(), network.buffers())))
