"""Measuring a GPU's rates: here on a virtual one, whose figures are nobody's to keep."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import anydevice as ad
from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.plan.time import calibrate as calibration
from anydevice.plan.time import rates


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> calibration.Calibration:
    monkeypatch.setattr(calibration, "MANY", 10)
    with ad.virtual_gpus(gpu="t4"):
        return calibration.calibrate(scale=1 / 128, budget=0.0)


def test_every_measurement_is_a_constant_of_the_table_and_a_number(
    found: calibration.Calibration,
) -> None:
    assert found.card == card("t4")
    assert set(found.rates) <= set(rates.rates())
    assert {"tensor_cores", "cuda_cores", "bandwidth", "pinned", "host_op"} <= set(found.rates)
    assert "tf32" not in found.rates  # which a T4 does not have
    assert all(math.isfinite(figure) and figure > 0 for figure in found.rates.values())


def test_a_virtual_gpus_rates_are_shown_as_such_and_not_kept(
    found: calibration.Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "a virtual GPU: not the rates of a real one" in found.table().title
    with pytest.raises(UsageError, match="expected rates measured on a real GPU"):
        found.store()
    assert not rates.stored(found.card)
    found.real = True  # what a real card's would do
    assert found.store().is_relative_to(tmp_path)
    assert rates.stored(found.card) == found.rates


def test_the_settings_of_float32_are_as_they_were(found: calibration.Calibration) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_there_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="expected a GPU to calibrate, got a machine without one"):
        calibration.main()
