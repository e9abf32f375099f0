"""Resuming exactly where a run was interrupted: the same weights, numbers and batches follow."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anydevice.devices.move import move
from anydevice.notices import log, say_once
from anydevice.train.callbacks.callback import Callback
from anydevice.train.checkpoint.checkpoints import (
    SHARDS,
    Checkpoints,
    malformed,
    read,
)
from anydevice.train.checkpoint.manifest import CheckpointError
from anydevice.train.data.random_state import random_state, set_random_state
from anydevice.train.distributed.ending import TERMINATED, Ending, EndingTogether, asked_to_end
from anydevice.train.distributed.failing import Watch
from anydevice.train.metrics.metrics import added
from anydevice.train.ranks import Ranks
from anydevice.train.state import write

if TYPE_CHECKING:
    from anydevice.train.trial import Trial

NAMED = ("optimizer", "loss", "metrics")  # what Trial.load() need not be given again
OWN = ("random", "random_of_epoch", "metrics")  # what a rank has for itself
KINDS: dict[str, Any] = {  # of what a trial's state consists
    "names": dict,
    "random": dict,
    "history": list,
    "step": int,
    "batches": int,
    "stopped": bool,
    "parts": int,
    "seed": int | None,
    "optimizer": dict | None,
    "loss": dict | None,
    "scaler": dict | None,
    "skipped": int,
    "callbacks": list,
}


class Keeper(Callback):
    """Writes checkpoints, and starts a run from the newest that is there."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.random: dict[str, Any] = {}
        self.random_of_epoch: dict[str, Any] = {}

    def go_on(self, trial: "Trial") -> None:
        """Takes up the newest intact checkpoint, if there is one ahead of the trial."""
        newest = None if trial.job.step else self.checkpoints.intact(trial.ranks)
        if newest is None:
            return
        first = trial.ranks is None or trial.ranks.first
        if first:
            self.checkpoints.set_damaged_aside(newest)
        if trial.is_sharded and not (newest / SHARDS).exists():
            raise CheckpointError(
                f'expected a checkpoint in shards, for strategy="fsdp", got a whole one in {newest}'
                ": name another folder."
            )
        with malformed(newest):
            state = of_this_rank(read(newest, trial.network), trial)
            trial.set_state(state)
            self.random, self.random_of_epoch = state["random"], state.get("random_of_epoch", {})
            if not self.random_of_epoch:  # kept by Trial.save(), which does not look back
                trial.job.batches = 0
            set_random_state(self.random, trial.device, trial.train_data)
        if first:
            at = f"epoch {trial.epoch + 1}, step {trial.job.step}"
            if trial.epoch >= trial.epochs:
                at = f"{trial.epoch} of {trial.epochs} epochs done: nothing is left to train"
            log.warning(f"anydevice: resuming from {newest} ({at}).")
            if trial.history and getattr(trial.train_data, "persistent_workers", False):
                say_once(
                    "anydevice: the order of samples is as it was, but persistent workers start "
                    "anew: random numbers that they draw themselves differ from here on. With "
                    "persistent_workers=False they do not."
                )

    def rest(self, batches: Iterable[Any], trial: "Trial") -> Iterable[Any]:
        """The epoch's batches after those that were trained on before the interruption."""
        if not trial.job.batches:
            self.random_of_epoch = random_state(trial.device, trial.train_data)
            return batches
        set_random_state(self.random_of_epoch, trial.device, trial.train_data)
        rest = iter(batches)
        for _ in range(trial.job.batches):
            next(rest, None)
        set_random_state(self.random, trial.device, trial.train_data)
        return rest

    @contextmanager
    def listening(self, watch: Watch | None = None) -> Iterator[None]:
        """Inside the block SIGTERM ends the run after the step that is under way."""
        self._ending = EndingTogether(watch) if watch else Ending()
        with asked_to_end(self._ending.ask):
            yield

    def on_step(self, trial: "Trial") -> None:  # noqa: D102
        every = self.checkpoints.every
        if self._ending.now() or (every and trial.job.step % every == 0):
            self._write(trial)

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        self._ending.now()
        self._write(trial)

    def _write(self, trial: "Trial") -> None:
        state = trial.state()
        self.random = state["random"]
        write(trial, self.checkpoints, of_all_ranks(state, self.random_of_epoch, trial.ranks))
        if self._ending.decided:
            raise SystemExit(TERMINATED)


def of_all_ranks(
    state: dict[str, Any], random_of_epoch: dict[str, Any], ranks: Ranks | None
) -> dict[str, Any]:
    """The state to keep: what all ranks have in common, and what each has for itself."""
    state = {**state, "random_of_epoch": random_of_epoch}
    if ranks:
        own = {name: state[name] for name in OWN}
        state["ranks"] = ranks.gather(move(own, "cpu"))
    return state


def of_this_rank(state: dict[str, Any], trial: "Trial | None" = None) -> dict[str, Any]:
    """The state to resume from; ranks other than those that wrote it share what these measured."""
    _refuse_malformed(state)
    ranks = trial.ranks if trial else None
    rank, world = (ranks.rank, ranks.world) if ranks else (0, 1)
    wrote = state.pop("ranks", None) or [{name: state.get(name) for name in OWN}]
    if len(wrote) == world:
        return {**state, **wrote[rank]}
    if rank < len(wrote):
        state.update(wrote[rank])
    elif trial:
        # A rank that was not there draws its own numbers, but the data's generators are one.
        for name in ("random", "random_of_epoch"):
            if state[name]:
                state[name] = random_state(trial.device) | {"data": state[name]["data"]}
    measured = [own["metrics"] for own in wrote]
    if measured[0] is not None:
        state["metrics"] = added(measured) if rank == 0 else {}
    return state


def _refuse_malformed(state: dict[str, Any]) -> None:
    for name, kind in KINDS.items():
        value = state[name]
        if not isinstance(value, kind) or (kind is int and value < 0):
            raise TypeError(f"{name} is {value!r:.40}")
    names = state["names"]
    given = [names.get("optimizer", ""), names.get("loss", ""), *names["metrics"]]
    if not all(isinstance(name, str) for name in given) or names.keys() - set(NAMED):
        raise TypeError(f"names is {names!r:.80}")
    if not all(isinstance(record, dict) and "epoch" in record for record in state["history"]):
        raise TypeError("history is not of epochs")
