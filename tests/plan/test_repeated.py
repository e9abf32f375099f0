"""Evaluations of many batches: a few passes are run, the others taken to be alike."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from anydevice.plan.hollow import repeated
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.run import HollowRun, hollow_run

BATCHES = 12
Evaluate = Callable[[nn.Module], object]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 8)
        self.passes = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.passes += 1
        scores = self.last(self.first(x).relu())
        return scores, scores.logsumexp(1).mean()


def batch() -> Tensor:
    return torch.randn(32, 64).cuda()


def scored(network: nn.Module) -> object:
    losses = torch.zeros(BATCHES)
    for number in range(BATCHES):
        _, loss = network(batch())
        losses[number] = loss.item()
    return losses.mean()


def kept(network: nn.Module) -> object:
    return [network(batch()) for _ in range(BATCHES)]


def last_is_larger(network: nn.Module) -> object:
    for _ in range(BATCHES):
        network(batch())
    return network(torch.randn(4096, 64).cuda())


def trained(evaluate: Evaluate, network: Classifier) -> None:
    network.cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        network.eval()
        with torch.no_grad():
            evaluate(network)
        network.train()
        network(batch())[1].backward()
        optimizer.step()
        optimizer.zero_grad()


def run_until(alike: int, evaluate: Evaluate) -> tuple[HollowRun, int]:
    """The run, and how many passes it ran."""

    def run() -> tuple[HollowRun, int]:
        network = Classifier()
        with patch.object(repeated, "SEEN", alike):
            return hollow_run(lambda: trained(evaluate, network), "t4"), network.passes

    return isolated(run)


def runs(evaluate: Evaluate) -> tuple[HollowRun, HollowRun, int, int]:
    """The run as it is, one that leaves out no pass, and how many passes each ran."""
    (quick, ran), (whole, all_of_them) = (run_until(n, evaluate) for n in (repeated.SEEN, 1000))
    return quick, whole, ran, all_of_them


def names(run: HollowRun) -> list[str]:
    return [entry.name for entry in run.work.ops] if run.work else []


def test_a_few_passes_of_an_evaluation_are_run_and_the_answer_is_the_same() -> None:
    quick, whole, ran, all_of_them = runs(scored)
    assert all_of_them == 3 * BATCHES + 3
    assert ran == 3 * repeated.SEEN + 3 + 1  # the first one also takes a workspace
    assert (quick.allocated, quick.tensors) == (whole.allocated, whole.tensors)
    assert names(quick) == names(whole)
    assert any(
        f"{all_of_them - ran} of Classifier were taken to be like" in note for note in quick.notes
    )
    assert not any("taken to be like" in note for note in whole.notes)


@pytest.mark.parametrize("evaluate", [kept, last_is_larger])
def test_passes_that_need_more_memory_are_run(evaluate: Evaluate) -> None:
    quick, whole, ran, all_of_them = runs(evaluate)
    assert (quick.allocated, quick.tensors) == (whole.allocated, whole.tensors)
    assert ran == all_of_them if evaluate is kept else ran < all_of_them


def test_training_passes_and_views_of_inputs_are_run() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.passes = nn.Parameter(torch.ones(1)), 0

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            return x.flatten() if not torch.is_grad_enabled() else x.flatten() * self.weight

    def passes() -> int:
        network = Flat()

        def train() -> None:
            network.cuda()
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            with torch.no_grad():
                network.eval()
                for _ in range(BATCHES):
                    network(batch())
            for _ in range(2):
                network(batch()).sum().backward()
            optimizer.step()

        hollow_run(train, "t4", steps=1, gpus=1)
        return network.passes

    assert isolated(passes) == BATCHES + 2
