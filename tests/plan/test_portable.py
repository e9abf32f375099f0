"""Plans where a process that has PyTorch cannot be forked: in a new Python, on copies of files."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from anydevice import system
from anydevice.notices import say_once
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.planning import plan


@pytest.fixture(autouse=True)
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    monkeypatch.setenv(system.PORTABLE, "1")


def training(path: Path, seen: list[int]) -> Callable[[], None]:
    def train() -> None:
        path.write_text(path.read_text() + " and more")
        assert path.read_text() == "a text and more"
        assert os.listdir(path.parent) == [path.name]
        seen.append(os.getpid())
        network = torch.nn.Linear(1000, 1000, device="cuda")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(9):
            network(torch.rand(8, 1000, device="cuda")).mean().backward()
            optimizer.step()

    return train


def test_a_closure_is_planned_in_a_new_python(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    say_once.cache_clear()
    path, seen = tmp_path / "written.txt", []
    path.write_text("a text")
    answer = plan(training(path, seen), "t4", remedies=False)["t4"]
    assert answer.fits
    assert answer.run.allocated > 2 * 4 * 1000 * 1000  # weights and gradients
    assert path.read_text() == "a text"
    assert seen == []
    assert "the program writes to copies of its files" in caplog.text


def test_what_cannot_be_pickled_is_refused_in_a_sentence() -> None:
    lock = threading.Lock()
    with pytest.raises(CannotPlanError, match=r"new process.*cannot be pickled"):
        isolated(lambda: lock)


def test_without_cloudpickle_a_function_of_the_program_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_the_program() -> None:
        raise AssertionError("not called")

    main = sys.modules["__main__"]
    of_the_program.__module__ = "__main__"
    of_the_program.__qualname__ = "of_the_program"
    monkeypatch.setattr(main, "of_the_program", of_the_program, raising=False)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(CannotPlanError, match="pip install 'anydevice\\[sweep\\]'"):
        isolated(of_the_program)
