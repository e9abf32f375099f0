"""The examples in docstrings run as they stand."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from anydevice.bench import tasks


@pytest.mark.parametrize(
    "name",
    [
        "bench.suite",
        "data.images",
        "data.shapes",
        "sweep.grid",
        "sweep.halving",
        "sweep.page.page",
        "sweep.results.results",
        "sweep.sample",
        "sweep.sweep",
    ],
)
def test_the_examples_in_docstrings_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cloudpickle")  # which sends the experiments that examples define
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "PRODUCTS", (100,))  # a benchmark of less than seconds
    done = doctest.testmod(import_module(f"anydevice.{name}"))
    assert done.attempted
    assert not done.failed
