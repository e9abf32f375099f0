"""The examples in the docstrings of trials and callbacks run."""

import doctest
from pathlib import Path

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.train import history, trial
from anydevice.train.callbacks import (
    callback,
    guard,
    progress,
    records,
    schedule,
    watching,
)
from anydevice.train.questions import questions, summary

MODULES = [
    trial,
    questions,
    summary,
    history,
    callback,
    guard,
    progress,
    records,
    schedule,
    watching,
]


class Module(nn.Module):
    """One that knows how it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def names(folder: Path) -> dict[str, object]:
    """What the examples use without making it."""
    x, y = torch.randn(20, 4), torch.randint(3, (20,))
    network = nn.Linear(4, 3)
    given = ad.Trial(network, "adam", "cross_entropy").with_generators((x, y))
    own = {"network": network, "x": x, "y": y, "trial": given, "module": Module()}
    past = history.History([{"epoch": 1, "loss": 1.0}])
    return {**own, "history": past, "folder": folder, "ad": ad, "torch": torch, "nn": nn}


EXAMPLES = [
    example
    for module in MODULES
    for example in doctest.DocTestFinder(exclude_empty=True).find(module)
    if example.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name.split("train.")[-1])
def test_an_example_does_what_it_shows(example: doctest.DocTest, tmp_path: Path) -> None:
    if "plot" in example.name:
        pytest.importorskip("matplotlib")
    example.globs.update(names(tmp_path))
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    runner.run(example, out=printed.append)
    assert not runner.failures, "".join(printed)


def test_what_a_trial_does_is_shown_in_an_example() -> None:
    shown = {example.name.split("Trial.")[-1] for example in EXAMPLES if "Trial." in example.name}
    does = {name for name, what in vars(trial.Trial).items() if "Args:" in (what.__doc__ or "")}
    assert does - {"load"} <= shown
    assert len(does) > 10
