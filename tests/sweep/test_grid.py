import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from anydevice import UsageError
from anydevice.sweep.grid import Run, grid, names_of, runs_of


def test_a_grid_is_every_combination_in_the_order_given() -> None:
    runs = grid(lr=[0.1, 0.01], device=["cuda", "cpu"])
    assert [(run.lr, run.device) for run in runs] == [
        (0.1, "cuda"),
        (0.1, "cpu"),
        (0.01, "cuda"),
        (0.01, "cpu"),
    ]


def test_when_leaves_combinations_out() -> None:
    runs = grid(lr=[0.1, 0.01], device=["cuda", "cpu"], when=lambda run: run.device != "cpu")
    assert [run.lr for run in runs] == [0.1, 0.01]


def test_a_run_does_not_change_and_names_what_is_mistyped() -> None:
    run = Run({"batch_size": 32})
    with pytest.raises(AttributeError, match="cannot be changed"):
        run.batch_size = 64  # type: ignore[misc]
    with pytest.raises(AttributeError, match="no parameter 'batchsize': did you mean batch_size"):
        run.batchsize  # noqa: B018
    with pytest.raises(UsageError, match="no folder"):
        run.folder  # noqa: B018


def test_a_run_survives_pickling_and_copying() -> None:
    run = Run({"lr": 0.1}).inside(Path("there"), seed=3)
    for again in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        assert again == run
        assert (again.folder, again.seed) == (Path("there"), 3)


def test_a_runs_key_is_of_its_parameters_in_whatever_order() -> None:
    assert Run({"a": 1, "b": 2}).key == Run({"b": 2, "a": 1}).key
    assert Run({"a": 1}).key != Run({"a": 2}).key
    assert Run({"layers": [64, 32]}) == Run({"layers": (64, 32)})


def test_the_parameter_seed_is_the_seed() -> None:
    assert Run({"seed": 5}, seed=1).seed == 5
    assert Run({"lr": 5}, seed=1).seed == 1


def test_numbers_of_numpy_and_torch_become_pythons_and_devices_their_names() -> None:
    runs = grid(
        lr=np.logspace(-2, -1, 2), width=torch.tensor([3]), device=[torch.device("cpu")], n=range(1)
    )
    assert [run.parameters for run in runs] == [
        {"lr": 0.01, "width": 3, "device": "cpu", "n": 0},
        {"lr": 0.1, "width": 3, "device": "cpu", "n": 0},
    ]
    assert type(runs[0].lr) is float


def test_runs_may_be_listed_and_have_different_parameters() -> None:
    runs = runs_of([{"lr": 0.1}, *grid(lr=[0.2], momentum=[0.9])])
    assert names_of(runs) == ["lr", "momentum"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: grid(), "expected parameters"),
        (lambda: grid(lr=[]), "one value or more for lr"),
        (lambda: grid(lr=[1], when=lambda run: False), "when= leaves all of them out"),
        (lambda: grid(device="cuda"), r"list of values for device, got 'cuda'"),
        (lambda: grid(lr=0.1), "list of values for lr, got 0.1"),
        (lambda: grid(lr={1, 2}), "a set, which has no order"),
        (lambda: grid(net=[torch.nn.Linear(1, 1)]), "cannot be stored"),
        (lambda: grid(lr=[math.nan]), "cannot be stored"),
        (lambda: grid(epoch=[1]), "another name than 'epoch'"),
        (lambda: runs_of([]), "one run or more"),
        (lambda: runs_of({"lr": 1}), "a list of runs"),
        (lambda: runs_of([3]), "a run as a dictionary"),
        (lambda: runs_of([{"weight decay": 1}]), "names such as batch_size"),
        (lambda: runs_of([*grid(lr=[1, 2]), {"lr": 2}]), r"\(lr=2\) twice, as run 2 and run 3"),
    ],
)
def test_wrong_runs_are_told_in_a_sentence(make, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make()
