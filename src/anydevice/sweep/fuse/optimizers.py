"""SGD, Adam and AdamW for many runs at once: a row of each tensor is a run, with its own settings.

The arithmetic is PyTorch's own, op by op, so that a row ends with what the run alone would have.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

VARYING = ("lr", "weight_decay", "momentum")  # settings that may differ between runs


class Rows:
    """The optimizers of many runs, over tensors whose dimension 0 is the run."""

    states: ClassVar[tuple[str, ...]]  # what torch's optimizer keeps for each parameter

    def __init__(self, optimizers: Sequence[Optimizer], weights: list[Tensor]) -> None:
        self.optimizers = list(optimizers)
        self.weights = weights
        self.steps = 0
        self.kept = {name: [torch.zeros_like(w) for w in weights] for name in self.states}
        self.read_settings()

    def read_settings(self) -> None:
        """Reads the settings of the runs' own optimizers: a schedule may have changed them."""
        groups = [optimizer.param_groups[0] for optimizer in self.optimizers]
        self.group: dict[str, Any] = groups[0]
        settings = {name: [float(group.get(name, 0.0)) for group in groups] for name in VARYING}
        self.lr, self.decay, self.momentum = (
            torch.tensor(values, dtype=torch.float64) for values in settings.values()
        )
        self.decays, self.moves = any(settings["weight_decay"]), any(settings["momentum"])
        self.lrs, self.decays_each = self.spread(self.lr), self.spread(self.decay)
        self.momenta = self.spread(self.momentum)

    def spread(self, setting: Tensor) -> list[Tensor]:
        """A number for each run, in the shape and type that fits each of the weights."""
        ready = {
            (w.dim(), w.dtype): setting.to(w.device, w.dtype).view(-1, *[1] * (w.dim() - 1))
            for w in self.weights
        }
        return [ready[w.dim(), w.dtype] for w in self.weights]

    def step(self, gradients: list[Tensor]) -> None:
        """One step of all the runs."""
        raise NotImplementedError

    def only(self, rows: list[int], weights: list[Tensor]) -> None:
        """Continues with these runs alone, whose weights are given."""
        self.kept = {name: [t[rows] for t in tensors] for name, tensors in self.kept.items()}
        self.optimizers = [self.optimizers[row] for row in rows]
        self.weights = weights
        self.read_settings()

    def give_back(self, row: int, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Leaves torch's optimizer of that run as if it had made the steps."""
        state = self.optimizers[row].state
        for place, parameter in enumerate(parameters):
            own = {name: tensors[place][row].clone() for name, tensors in self.kept.items()}
            state[parameter] = self.completed(own)

    def completed(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of one parameter, with what is the same for all."""
        return state


class RowsOfSGD(Rows):
    """`torch.optim.SGD`, with momentum and Nesterov's."""

    states = ("momentum_buffer",)

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:  # noqa: D102
        if self.decays:
            gradients = torch._foreach_addcmul(gradients, self.decays_each, self.weights)  # type: ignore[assignment]
        if self.moves:
            velocity = self.kept["momentum_buffer"]
            torch._foreach_mul_(velocity, self.momenta)
            damped = 1 - self.group["dampening"] if self.steps else 1
            torch._foreach_add_(velocity, gradients, alpha=damped)
            if self.group["nesterov"]:
                gradients = torch._foreach_addcmul(gradients, self.momenta, velocity)  # type: ignore[assignment]
            else:
                gradients = velocity
        torch._foreach_addcmul_(self.weights, gradients, self.lrs, value=-1)
        self.steps += 1

    def completed(self, state: dict[str, Any]) -> dict[str, Any]:  # noqa: D102
        return state if self.moves else {}


class RowsOfAdam(Rows):
    """`torch.optim.Adam`, and AdamW with its decoupled decay."""

    states = ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:  # noqa: D102
        self.steps += 1
        (first, second), (mean, square) = self.group["betas"], self.kept.values()
        if self.decays and self.decoupled:
            torch._foreach_mul_(self.weights, self.spread(1 - self.lr * self.decay))
        elif self.decays:
            gradients = torch._foreach_addcmul(gradients, self.decays_each, self.weights)  # type: ignore[assignment]
        torch._foreach_lerp_(mean, gradients, 1 - first)
        torch._foreach_mul_(square, second)
        torch._foreach_addcmul_(square, gradients, gradients, value=1 - second)
        roots = torch._foreach_sqrt(square)
        torch._foreach_div_(roots, (1 - second**self.steps) ** 0.5)
        torch._foreach_add_(roots, self.group["eps"])
        sizes = self.spread(self.lr / (1 - first**self.steps))
        torch._foreach_addcdiv_(self.weights, torch._foreach_mul(mean, sizes), roots, value=-1)

    def completed(self, state: dict[str, Any]) -> dict[str, Any]:  # noqa: D102
        return {"step": torch.tensor(float(self.steps)), **state}

    @property
    def decoupled(self) -> bool:
        """Whether the decay is AdamW's."""
        return bool(self.group.get("decoupled_weight_decay", type(self.optimizers[0]) is AdamW))


KINDS: dict[type[Optimizer], type[Rows]] = {SGD: RowsOfSGD, Adam: RowsOfAdam, AdamW: RowsOfAdam}
