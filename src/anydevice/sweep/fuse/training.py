"""Trials that share their shapes, trained as one: a row of every tensor is a trial.

The networks' parameters are views of the rows; torch.func.vmap makes the forward pass of one
network that of all.
"""

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from anydevice.errors import UsageError
from anydevice.sweep.fuse.optimizers import KINDS, Rows
from anydevice.sweep.fuse.recorder import Recorder
from anydevice.train.data.batches import Resident
from anydevice.train.data.images import Standardised
from anydevice.train.loop.forward import Result
from anydevice.train.loop.health import announce_divergence, rates_of, speed_of
from anydevice.train.metrics.metrics import Average, Measure, Share
from anydevice.train.trial import Trial

Measured = tuple[dict[str, Tensor], dict[str, int]]  # what metrics add up, and over how many


class Pass(nn.Module):
    """A trial's forward pass, loss and metrics, as a module whose parameters can be swapped."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.network = trial.network
        self.trial = [trial]  # in a list, so that it is not registered as a module
        self.counts: dict[str, int] = {}

    def forward(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and what each metric adds up."""
        trial = self.trial[0]
        result = trial.job.forward(self.network, batch)
        added = {name: self._added(name, m, result) for name, m in trial.metrics.measures.items()}
        return result.loss, added

    def _added(self, name: str, measure: Measure, result: Result) -> Tensor:
        self.counts[name] = result.size
        if isinstance(measure, Share):
            right = measure.right(result.output.detach(), result.target)
            self.counts[name] = right.numel()
            return right.sum()
        if isinstance(measure, Average):
            return measure.of(result.output.detach(), result.target) * result.size
        return result.loss.detach() * result.size


class Together:
    """Trials under way as one; `epoch()` trains each for one more."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = list(trials)
        self.last: list[Tensor] = []  # the gradients of the last step
        self.norms: Tensor | None = None  # theirs, where they are clipped
        self.names = [n for n, p in trials[0].network.named_parameters() if p.requires_grad]
        self._stack()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets the steps that the optimizers have made."""
        optimizers = [trial.optimizer for trial in self.trials]
        self.optimizer: Rows = KINDS[type(optimizers[0])](optimizers, self.weights)

    # ---- the weights of all, a row for each ----

    def _stack(self) -> None:
        """Puts the tensors of all in one place, where the networks see theirs as rows."""
        self.forward = Pass(self.trials[0])
        self.recorder = Recorder(self._gradients)
        held = [named_tensors(trial.network) for trial in self.trials]
        stacked = {name: torch.stack([own[name].data for own in held]) for name in held[0]}
        for row, own in enumerate(held):
            for name, tensor in own.items():
                tensor.data = stacked[name][row]
        self.weights = [stacked.pop(name) for name in self.names]
        self.others = stacked

    def drop_stopped(self) -> None:
        """Continues without the trials that have stopped, which keep what they have."""
        for row, trial in enumerate(self.trials):
            if trial.stopped:
                self._give_back(row)
        rows = [row for row, trial in enumerate(self.trials) if not trial.stopped]
        if rows and len(rows) < len(self.trials):
            self.trials = [self.trials[row] for row in rows]
            self._stack()
            self.optimizer.only(rows, self.weights)
        elif not rows:
            self.trials = []

    def end(self) -> None:
        """Leaves every trial as if it had trained alone."""
        for row in range(len(self.trials)):
            self._give_back(row)

    def _give_back(self, row: int) -> None:
        tensors = named_tensors(self.trials[row].network)
        for tensor in tensors.values():
            tensor.data = tensor.data.clone()
        self.optimizer.give_back(row, [tensors[name] for name in self.names])  # type: ignore[misc]

    # ---- training ----

    def epoch(self) -> None:
        """One pass over the data; each trial's history gets its record."""
        begin = perf_counter()
        for trial in self.trials:
            trial.sets.epoch = trial.epoch
            trial.network.train()
        self.optimizer.read_settings()
        sums, samples = Sums(), 0
        for batch, dims in batches(self.trials, "train"):
            sums.add(*self.step(batch, dims))
            samples += batch[0].size(0 if dims is None else 1)
        trained = perf_counter() - begin
        records = [{"epoch": self.trials[0].epoch + 1, **each} for each in self._figures(sums)]
        if "val" in self.trials[0].sets.given:
            for record, figures in zip(records, self._figures(self._measured()), strict=True):
                record |= {f"val_{name}": figure for name, figure in figures.items()}
        speed = {"seconds": perf_counter() - begin, "fused": len(self.trials)}
        norms = _norms(self.last) if self.norms is None else self.norms
        for trial, record, norm in zip(self.trials, records, norms.tolist(), strict=True):
            trial.job.step, trial.job.samples = trial.job.step + sums.batches, samples
            announce_divergence(trial, record)
            record |= {**rates_of(trial.optimizer), "grad_norm": norm, **speed_of(trial, trained)}
            trial.history.append({**record, **speed})

    def step(self, batch: Any, dims: int | None) -> Measured:
        """One step of all the optimizers, and what the metrics add up over how many."""
        gradients: list[Tensor]
        self.last = []  # gone before the next backward pass
        gradients, *measured = self.recorder(self.weights, self.others, batch, dims)
        if (most := self.trials[0].options.clip_norm) is not None:
            self.norms = _norms(gradients)
            _clip(gradients, most, self.norms)
        self.last = gradients
        self.optimizer.step(gradients)
        return measured[0], measured[1]

    def _gradients(
        self, weights: list[Tensor], others: dict[str, Tensor], batch: Any, dims: int | None
    ) -> tuple[Any, ...]:
        leaves = [weight.detach().requires_grad_() for weight in weights]
        loss, *measured = self._passed(leaves, others, batch, dims)
        return list(torch.autograd.grad(loss.sum(), leaves)), *measured

    def _passed(
        self, weights: list[Tensor], others: dict[str, Tensor], batch: Any, dims: int | None
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, int]]:
        """The forward passes of all: each one's loss, and what the metrics add up over how many."""
        tensors = {**dict(zip(self.names, weights, strict=True)), **others}
        tensors = {f"network.{name}": tensor for name, tensor in tensors.items()}

        def one(tensors: dict[str, Tensor], batch: Any) -> Any:
            given = dict(tensors)
            outcome = functional_call(self.forward, given, (batch,))
            if replaced := [name for name in given if given[name] is not tensors[name]]:
                raise UsageError(f"its {replaced[0]} is replaced in the forward pass")
            return outcome

        run = vmap(one, in_dims=(0, dims), randomness="error")
        loss, added = run(tensors, batch)
        return loss, added, dict(self.forward.counts)

    @torch.no_grad()
    def _measured(self) -> "Sums":
        sums = Sums()
        self.trials[0].network.eval()
        for batch, dims in batches(self.trials, "val"):
            _, added, counts = self._passed(self.weights, self.others, batch, dims)
            sums.add(added, counts)
        self.trials[0].network.train()
        return sums

    def _figures(self, sums: "Sums") -> list[dict[str, float]]:
        """The figures of each trial, by its own metrics."""
        if not sums.batches:
            raise UsageError("expected batches to train on, got none: is the data empty?")
        totals = {name: total.cpu() for name, total in sums.totals.items()}
        figures = []
        for row, trial in enumerate(self.trials):
            for name, measure in trial.metrics.measures.items():
                kept = dict(zip(measure.kept, (totals[name][row], sums.counts[name]), strict=True))
                measure.set_state(kept, torch.device("cpu"))
            figures.append(trial.metrics.read())
        return figures


class Sums:
    """What the metrics of all trials add up to, still on the device."""

    def __init__(self) -> None:
        self.totals: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.batches = 0

    def add(self, added: dict[str, Tensor], counts: dict[str, int]) -> None:
        """Adds one batch."""
        self.batches += 1
        for name, value in added.items():
            self.totals[name] = self.totals[name] + value if name in self.totals else value
            self.counts[name] = self.counts.get(name, 0) + counts[name]


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a network."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


@torch.no_grad()
def _norms(gradients: list[Tensor]) -> Tensor:
    """The norm of each row's gradients."""
    lengths = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    norms: Tensor = torch.linalg.vector_norm(lengths, dim=0)
    return norms


@torch.no_grad()
def _clip(gradients: list[Tensor], most: float, norms: Tensor) -> None:
    """What `torch.nn.utils.clip_grad_norm_` does, for each row separately."""
    scale = (most / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))


# ---- the batches of all ----


def resident(batches: Iterable[Any]) -> Resident | None:
    """The tensors behind a trial's batches, if it takes them from tensors on its device."""
    held = batches.batches if isinstance(batches, Standardised) else batches
    return held if isinstance(held, Resident) else None


def batches(trials: Sequence[Trial], name: str) -> Iterator[tuple[Any, int | None]]:
    """The batches of all trials: along dimension 0, or one for all (None) where they are the same.

    Each trial takes its own samples in its own order.
    """
    made = [trial.sets.named(name) for trial in trials]
    held = [found for found in map(resident, made) if found]
    cut = _cut(held)
    for place, dims in cut:
        batch = tuple(place)
        if isinstance(made[0], Standardised):
            (batch,) = Standardised([batch], made[0].mean, made[0].scale)
        yield batch, dims


def _cut(held: Sequence[Resident]) -> Iterator[tuple[list[Tensor], int | None]]:
    first = held[0]
    shared = all(_same(first.tensors, other.tensors) for other in held[1:])
    drawn = [each.order(each.tensors[0].device) for each in held]
    if shared and all(_equal(drawn[0], rows) for rows in drawn[1:]):
        for batch in Resident(first.tensors, first.batch_size, lambda device: drawn[0]):
            yield list(batch), None
        return
    samples = len(first.tensors[0])
    device = first.tensors[0].device
    orders = [torch.arange(samples, device=device) if d is None else d for d in drawn]
    for rows in torch.stack(orders).split(first.batch_size, dim=1):  # type: ignore[no-untyped-call]
        if shared:
            yield [tensor[rows] for tensor in first.tensors], 0
        else:
            yield (
                [
                    torch.stack(
                        [t.index_select(0, own) for t, own in zip(those, rows, strict=True)]
                    )
                    for those in zip(*(each.tensors for each in held), strict=True)
                ],
                0,
            )


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(a is b or torch.equal(a, b) for a, b in zip(some, others, strict=True))


def _equal(some: Tensor | None, other: Tensor | None) -> bool:
    return some is other or (some is not None and other is not None and torch.equal(some, other))
