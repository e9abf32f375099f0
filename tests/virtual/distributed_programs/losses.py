"""A small network's losses, of one process and of all ranks together.

They agree to the last digit or two of float32: a mean over ranks adds in another order than a mean
over one batch. Where gradients or parameters are narrower on purpose, as far as their digits go.
"""

import torch
import torch.distributed as dist
from checks import GPU, RANK, RANKS
from torch import nn
from torch.nn.functional import mse_loss

EXACT = 1e-6
STEPS = 4


def network(*between: nn.Module) -> nn.Sequential:
    """The same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 32), *between, nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def batches() -> tuple[torch.Tensor, torch.Tensor]:
    """Each step's examples, for all ranks, and their targets."""
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(STEPS, 8 * RANKS, width, generator=generator) for width in (8, 4))


def losses_alone(module: nn.Module) -> list[float]:
    """As one process trains on one GPU."""
    module.to(GPU)
    return _train(module, _sgd(module), lambda part: part, lambda loss: loss)


def losses_together(
    module: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> list[float]:
    """As all ranks train, each on its part of every batch."""

    def mean(loss: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss

    return _train(module, optimizer or _sgd(module), lambda part: part.chunk(RANKS)[RANK], mean)


def close(found: list[float], expected: list[float], tolerance: float, what: object) -> None:
    """Fails with both, where they differ by more than the tolerance."""
    apart = max(abs(one - other) for one, other in zip(found, expected, strict=True))
    assert apart <= tolerance, f"{what}: expected {expected}, got {found}"


def _sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def _train(module, optimizer, mine, mean):
    losses = []
    for batch, target in zip(*batches(), strict=True):
        loss = mse_loss(module(mine(batch).to(GPU)).float(), mine(target).to(GPU))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean(loss.detach().clone()).item())
    return losses
