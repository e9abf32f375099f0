"""A sweep planned before it is run: which of its runs will not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.sweep.grid import Run


def experiment(run: Run) -> Iterator[dict[str, Any]]:
    """A run that writes a file and a record an epoch, as experiments do."""
    (run.folder / "notes.txt").write_text("begun")
    device = torch.device(run.device)
    network = nn.Linear(1000, run.width, device=device)
    optimizer = torch.optim.SGD(network.parameters(), run.lr)
    for epoch in range(3):
        loss = network(torch.rand(run.batch, 1000, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"epoch": epoch, "loss": loss.item()}


def sweep(**parameters: Any) -> ad.Sweep:
    return ad.Sweep(experiment, ad.grid(lr=[0.1], **parameters))


def test_the_runs_that_will_not_fit_are_named_and_none_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = sweep(
        batch=[16, 1_000_000], width=[10, 4000], device=["cuda"]
    ).plan("t4")  # fmt: skip
    assert [(run.batch, run.width) for run in planned.too_large] == [(1_000_000, 4000)]
    assert not planned.fits
    assert not list(tmp_path.iterdir())
    assert "1 will not fit" in repr(planned)
    first = json.loads(json.dumps(planned.to_dict()))["runs"][0]
    assert first["fits"]
    assert first["device_bytes"] > 0
    assert first["time"]["seconds"] > 0


@pytest.mark.long
def test_the_largest_batch_of_a_sweeps_parameter_fits_and_the_next_does_not() -> None:
    planned = sweep(batch=[16, 1_000_000], width=[10, 4000], device=["cuda"]).plan(
        "t4", batch_arg="batch"
    )
    found = {(plan.run.batch, plan.run.width): plan.largest for plan in planned.plans}
    assert found[16, 10] == found[1_000_000, 10] != found[16, 4000] == found[1_000_000, 4000]
    largest = found[16, 4000]
    assert largest
    around = sweep(batch=[largest.batch, largest.batch + 1], width=[4000], device=["cuda"])
    assert [run.batch for run in around.plan("t4").too_large] == [largest.batch + 1]
    assert f"{largest.batch:,}" in repr(planned)
    assert planned.to_dict()["runs"][0]["largest_batch"]


@pytest.mark.parametrize("name", ["size", "lr"])
def test_a_batch_size_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="expected a parameter of every run with its batch size"):
        sweep(batch=[16], width=[10], device=["cuda"]).plan("t4", batch_arg=name)


def test_a_run_on_the_cpu_and_one_that_fails_are_said_to_be_so() -> None:
    planned = sweep(batch=[16], width=[10, -1], device=["cpu", "cuda"]).plan("t4")
    reasons = {(p.run.width, p.run.device): p.why_not for p in planned.plans}
    assert reasons[10, "cpu"] == "on the CPU"
    assert reasons[10, "cuda"] == ""
    assert "which failed with RuntimeError" in reasons[-1, "cuda"]
    assert planned.fits
    assert planned.table().title.endswith(": none is too large, 1 could not be planned")


def test_a_sweep_that_only_tracks_cannot_be_planned() -> None:
    with pytest.raises(UsageError, match="expected a sweep with an experiment to plan"):
        ad.Sweep(None, [{"lr": 0.1}]).plan("t4")
