"""The state of a trial: what a checkpoint keeps of it, and what a resumed trial takes from one.

Note [What a resumed run restores]
----------------------------------
A run that resumes from a checkpoint ends with the same bits as one that was never interrupted.
For this it needs more than weights:

- the network with all its buffers, the optimizer, the loss if it is a module, the GradScaler;
- the history, the number of steps, and the seed of the order of samples, so that epoch n draws the
  same order as before;
- the number of batches of the epoch under way: that many are drawn again and skipped, from the
  random state that the epoch began with (`Keeper.rest`);
- the random state at the moment of the checkpoint: Python's, NumPy's, PyTorch's, the device's and
  those of a DataLoader's generators, for dropout and augmentation;
- what the metrics have summed up in the epoch under way, and the norm of the last gradients;
- the callbacks that have a `state_dict()`, in their order;
- in how many parts batches are taken after running out of memory, since sums of parts round
  differently.

With several ranks, random states and metrics are those of each rank (`of_all_ranks`); everything
else is the same on all. Under "fsdp" network and optimizer are written in shards, by all ranks.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anydevice.train.checkpoint.checkpoints import Checkpoints, take_up, whole_network
from anydevice.train.data.random_state import random_state
from anydevice.train.history import History
from anydevice.train.loop.health import gradient_norm

if TYPE_CHECKING:
    from anydevice.train.checkpoint.shards import Shards
    from anydevice.train.trial import Trial


def state_of(trial: "Trial") -> dict[str, Any]:
    """Everything that the training depends on from here, except for the network."""
    job, loss = trial.job, trial.loss
    whole = not trial.is_sharded
    return {
        "names": trial.recipe.names,
        "random": random_state(trial.device, trial.train_data),
        "history": list(trial.history),
        "step": job.step,
        "batches": job.batches,
        "stopped": trial.stopped,
        "parts": job.parts,
        "seed": trial.sets.seed,
        "optimizer": job.optimizer.state_dict() if whole and job.optimizer else None,
        "groups": None if whole else _shards(trial).groups(),
        "loss": loss.state_dict() if whole and isinstance(loss, nn.Module) else None,
        "scaler": job.scaler.state_dict() if job.scaler else None,
        "skipped": int(job.skipped),
        "metrics": trial.metrics.state() if job.batches else None,
        "grad_norm": _norm_so_far(trial),
        "callbacks": [callback.state_dict() for callback in _with_state(trial)],
    }


def restore(trial: "Trial", state: dict[str, Any]) -> None:
    """Has the trial continue from what `state_of` gave."""
    job, loss = trial.job, trial.loss
    trains = trial.recipe.optimizer is not None
    trial.history, trial.stopped = History(state["history"]), state["stopped"]
    job.parts, trial.sets.seed = state["parts"], state["seed"]
    job.step, job.batches, job.skipped = state["step"], state["batches"], state["skipped"]
    if state["optimizer"] and trains:
        take_up(trial.optimizer, state["optimizer"])
    if "shards" in state:
        if trains:
            _ = trial.optimizer  # builds it
        _shards(trial).read(state["shards"], state["groups"])
    if state["loss"] and isinstance(loss, nn.Module):
        loss.load_state_dict(state["loss"])
    if state["scaler"] and job.scaler:
        job.scaler.load_state_dict(state["scaler"])
    if state["metrics"] is not None:
        trial.metrics.reset(trial.device)
        trial.metrics.set_state(state["metrics"], trial.device)
    if state.get("grad_norm") is not None:
        job.norm = torch.tensor(float(state["grad_norm"]), device=trial.device)
    for callback, kept in zip(_with_state(trial), state["callbacks"], strict=False):
        callback.load_state_dict(kept)


def _norm_so_far(trial: "Trial") -> float | None:
    """Of the last step's gradients, since the epoch under way may have no further one."""
    norm = gradient_norm(trial.job) if trial.job.batches else None
    return None if norm is None else float(norm)


def write(trial: "Trial", checkpoints: Checkpoints, state: dict[str, Any]) -> Path | None:
    """Adds a checkpoint: the first rank writes it, and of a sharded network each rank its share."""
    ranks = trial.ranks
    if ranks is None or (ranks.first and not trial.is_sharded):
        return checkpoints.add(state, whole_network(trial.network))
    if not trial.is_sharded:
        return None
    ranks.same_buffers(trial.network)
    shards = _shards(trial)
    if ranks.first:
        return checkpoints.add(state, lambda folder: shards.write(ranks.told(folder)))
    shards.write(ranks.told())
    return None


def gathered(network: nn.Module) -> dict[str, Tensor]:
    """The state_dict on the CPU; all ranks gather that of a sharded network together."""
    state = network.state_dict()
    wholes = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in state.items()}
    return {n: t.detach().to("cpu", copy=True).contiguous() for n, t in wholes.items()}


def spread(network: nn.Module, state: dict[str, Tensor]) -> None:
    """Loads what `gathered` gave into a sharded network."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(network, {**state}, options=StateDictOptions(full_state_dict=True))


def _shards(trial: "Trial") -> "Shards":
    from anydevice.train.checkpoint.shards import Shards  # takes a second to import

    ranks = trial.ranks if trial.is_sharded else None
    return Shards(trial.network, trial.loss, trial.job.optimizer, ranks)


def _with_state(trial: "Trial") -> list[Any]:
    return [callback for callback in trial.callbacks if hasattr(callback, "state_dict")]
