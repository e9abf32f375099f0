"""What the network and the loss make of one batch, in any of the shapes that a batch has."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from anydevice.errors import UsageError
from anydevice.train.data.rows import sample_count
from anydevice.train.recipes import Loss

TARGETS = ("labels", "label", "targets", "target", "y")


class Result(NamedTuple):
    """One batch's outcome, still on the device."""

    loss: Tensor
    output: Any
    target: Any
    size: int


Forward = Callable[[nn.Module, Any], Result]
Step = Callable[[nn.Module, Any], Any]


def forward_of(loss: Loss | None, step: Step | None = None) -> Forward:
    """The function for a batch: the user's own `step`, or network and loss."""
    return _by_step(step) if step else _by_loss(loss)


def _by_loss(loss: Loss | None) -> Forward:
    def forward(network: nn.Module, batch: Any) -> Result:
        size = sample_count(batch)
        if isinstance(batch, (tuple, list)) and len(batch) == 1:
            batch = batch[0]
        output = None
        try:
            if isinstance(batch, (tuple, list)):
                *inputs, target = batch
                output = network(*inputs)
            elif isinstance(batch, Mapping):
                target = next((batch[name] for name in TARGETS if name in batch), None)
                output = network(
                    **(with_labels(network, batch) if loss is None else without_target(batch))
                )
            else:
                target, output = batch, network(batch)
            made = output
            if type(output) is not Tensor:  # of a model that gives more than its predictions
                output = predicted(output)
            value = _own_loss(made) if loss is None else loss(output, target)
        except (RuntimeError, ValueError, IndexError) as error:
            _note_shapes(error, batch, output)
            raise
        except TypeError as error:
            if isinstance(batch, Mapping) and "argument" in str(error):
                _note_names(error, network, batch)
            raise
        return Result(_scalar(value), output, target, size)

    return forward


def _note_shapes(error: Exception, batch: Any, output: Any) -> None:
    """Adds what came, where network or loss expected something else."""
    came = tree_map_only(Tensor, lambda tensor: f"{list(tensor.shape)} {tensor.dtype}", batch)
    where = "the network" if output is None else "the loss, after the network"
    error.add_note(f"raised in {where}, which got a batch of {came}: is it of the shape expected?")
    doubles = any(t.dtype == torch.float64 for t in tree_leaves(batch) if isinstance(t, Tensor))
    if doubles and "dtype" in str(error):
        error.add_note(
            "NumPy's numbers are float64 unless one asks, and the network's are not. Fix: give "
            "float32, such as x.astype('float32') or x.float()."
        )
    target = batch[-1] if isinstance(batch, (tuple, list)) else None
    if isinstance(target, Tensor) and isinstance(output, Tensor):
        _note_target(error, output, target)
    if isinstance(batch, Tensor) and output is not None:
        error.add_note(
            "The data has no targets, so the inputs are the targets too, as for an autoencoder. "
            "Fix: give pairs, with_generators((inputs, targets))."
        )


def _note_names(error: Exception, network: nn.Module, batch: Mapping[str, Any]) -> None:
    """Adds how the entries of a dict reach the network, where it takes others."""
    taken = ", ".join(inspect.signature(network.forward).parameters)
    error.add_note(
        f"A batch that is a dict is given by name, here {', '.join(map(str, batch))}; the "
        f"network's forward takes {taken}. Fix: give the data the names of forward, or step=."
    )


def _note_target(error: Exception, output: Tensor, target: Tensor) -> None:
    """What a loss over classes takes, where the targets are of another shape or type."""
    text = str(error)
    if "dtype to be Long" in text or "scalar type Long" in text:
        error.add_note("Classes are whole numbers. Fix: y = y.long()")
    if "multi-target not supported" in text and target.shape == output.shape:
        error.add_note("Classes are one number for each sample. Fix: y = y.argmax(1), or y.float()")
    elif "multi-target not supported" in text and target.dim() == 2:
        error.add_note("Classes are one number for each sample. Fix: y = y.squeeze(1)")


def _by_step(step: Step) -> Forward:
    def forward(network: nn.Module, batch: Any) -> Result:
        made = step(network, batch)
        value, output = made if isinstance(made, tuple) else (made, None)
        if isinstance(made, Mapping):
            value, output = made["loss"], made.get("output")
        target = batch[-1] if isinstance(batch, (tuple, list)) else None
        return Result(_scalar(value), output, target, sample_count(batch))

    return forward


def predicted(output: Any) -> Any:
    """The predictions among what a model gives: its `logits`, as Hugging Face's models name them.

    Of sequences the classes come last there; here they come after the samples, as in PyTorch.
    """
    by_name = isinstance(output, Mapping)
    found = output.get("logits") if by_name else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        return output
    return found.movedim(-1, 1) if found.dim() == 3 else found


def _own_loss(output: Any) -> Any:
    """The loss that a network returns itself: as `.loss`, or under that name."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        raise UsageError(
            f"expected a loss, since this network returns {type(output).__name__} without one: "
            'name it, such as Trial(network, "adam", "cross_entropy"), or give step=.'
        )
    return found


def with_labels(network: nn.Module, batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """A batch for a network that makes its own loss: of `labels`, where data sets say `label`."""
    if "label" not in batch or "labels" in batch:
        return batch
    taken = inspect.signature(network.forward).parameters
    if "label" in taken or "labels" not in taken:
        return batch
    return {("labels" if name == "label" else name): part for name, part in batch.items()}


def _scalar(loss: Any) -> Tensor:
    if isinstance(loss, Tensor) and loss.dim() == 0:
        return loss
    got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    raise UsageError(
        f"expected the loss to be one number for the batch (a tensor without dimensions), got {got}"
        ": average it, for example with reduction='mean'."
    )


# ---- without a loss ----


def answer(network: nn.Module, batch: Any) -> Any:
    """The output for a batch's inputs; a target that comes with them is left out."""
    if isinstance(batch, Mapping):
        return network(**without_target(batch))
    if isinstance(batch, (tuple, list)):
        return network(*(batch if len(batch) == 1 else batch[:-1]))
    return network(batch)


def without_target(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch that is a dictionary, as the network takes it."""
    return {name: part for name, part in batch.items() if name not in TARGETS}


def joined(outputs: list[Any]) -> Any:
    """The outputs of all batches as that of one; None without any."""
    return tree_map(_joined, *outputs) if outputs else None


def _joined(*parts: Any) -> Any:
    if not isinstance(parts[0], Tensor):
        return parts[0] if len(set(map(repr, parts))) == 1 else list(parts)
    return torch.cat(parts) if parts[0].dim() else torch.stack(parts)
