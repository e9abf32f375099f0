"""What an out-of-memory error in a trial's step says: what holds the memory, and what would fit."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anydevice.errors import UsageError
from anydevice.text import size_text
from anydevice.train.data.portions import Portion
from anydevice.train.data.rows import sample_count
from anydevice.train.loop.forward import answer, forward_of
from anydevice.train.questions.summary import summarised

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


def add_note(trial: "Trial", error: torch.OutOfMemoryError, batch: Any) -> None:
    """Adds to the error what holds the memory, about which batch fits, and what to write."""
    held = held_bytes(trial)
    parts = ", ".join(f"{what} {size_text(size)}" for what, size in held.items() if size)
    try:
        total = int(torch.cuda.get_device_properties(trial.device).total_memory)
    except (AssertionError, RuntimeError, ValueError):
        return
    lines = [
        f"{trial.device} has {size_text(total)}. This training holds {parts or 'nothing yet'}."
    ]
    batch = batch.batch if isinstance(batch, Portion) else batch
    if batch is not None:
        lines += _about_batches(trial, batch, total - _fixed(trial, held))
    lines.append("`anydevice plan` predicts what fits which GPU, and what would make it fit.")
    error.add_note(" ".join(lines))


def held_bytes(trial: "Trial") -> dict[str, int]:
    """The memory of weights, gradients, the optimizer's state and the training data, on the GPU."""
    parameters = [*trial.network.parameters()]
    optimizer = trial.job.optimizer
    state = tree_leaves(list(optimizer.state.values())) if optimizer else []
    train = trial.sets.made.get("train")
    return {
        "weights": _bytes([*parameters, *trial.network.buffers()], trial.device),
        "gradients": _bytes([p.grad for p in parameters], trial.device),
        "the optimizer": _bytes(state, trial.device),
        "the training data": _bytes(getattr(train, "tensors", ()), trial.device),
    }


def _fixed(trial: "Trial", held: dict[str, int]) -> int:
    """What a step holds for a batch of any size, once the optimizer has its state."""
    found = summarised(trial.network, None, optimizer=trial.job.optimizer)
    fixed = found.weight_bytes + found.gradient_bytes + (found.optimizer_bytes or 0)
    return fixed + held["the training data"]


def _about_batches(trial: "Trial", batch: Any, room: int) -> list[str]:
    """The size of the batch, what it needs, and about how many samples there is room for."""
    own_steps = trial.recipe.has_own_steps
    step = None if own_steps else trial.recipe.step
    try:
        size = sample_count(batch)
        call = forward_of(None, step) if step else answer
        found = summarised(trial.network, batch, call=call, autocast=trial.precision.autocast)
    except (UsageError, RuntimeError, TypeError, ValueError):
        return []
    kept = found.kept_bytes or 0
    said = [f"A batch of {size} keeps {size_text(kept)} more for the backward pass."]
    fits = int(room / (kept / size)) if kept else 0
    if fits < 1:
        said.append(
            "Not even one sample fits. Fix: a smaller network, a GPU with more memory, "
            'precision="bf16", or several GPUs with strategy="fsdp".'
        )
    elif fits < size:
        times = -(-size // fits)
        said.append(
            f"At most about {fits} samples fit. Fix: with_generators(…, batch_size={fits}), and "
            f"with_options(accumulate={times}) for the same steps; or on_oom='split', or "
            'precision="bf16".'
        )
    return said


def _bytes(tensors: Any, device: torch.device) -> int:
    there = [t for t in tensors if isinstance(t, Tensor) and t.device == device]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in there}.values())
