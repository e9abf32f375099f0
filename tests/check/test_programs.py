"""Programs with one mistake each, and twins without it that look alike."""

import shutil
from pathlib import Path

import pytest

from anydevice.check.checking import checked
from anydevice.check.report import Report
from anydevice.check.settings import Settings
from anydevice.plan.hollow.program import Program
from tests.check.programs import names, pair

QUICK = (
    "clipped_scaled",
    "dropped_move",
    "evaluated_in_train_mode",
    "item_each_step",
    "losses_kept",
)


def report_of(program: str, folder: Path) -> Report:
    """What is found in a program."""
    file = folder / "train.py"
    file.write_text(program)
    return checked(Program((str(file),)), Settings(gpus=("t4", "h100")))


def look_at(name: str, folder: Path) -> None:
    """The mistake is found at its line, and nothing is found in the twin."""
    both = pair(name)
    found = report_of(both.bad, folder).findings
    places = [(one.rule, one.site.line) for one in found]
    assert any(r == both.rule and both.line in (None, line) for r, line in places), places
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    assert report_of(both.good, folder).findings == []


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_is_found_and_its_twin_is_clean(name: str, tmp_path: Path) -> None:
    look_at(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in names() if name not in QUICK])
def test_each_mistake_is_found_and_its_twin_is_clean(name: str, tmp_path: Path) -> None:
    look_at(name, tmp_path)
