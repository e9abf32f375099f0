"""A slice of the published measurements, with bounds; `make published` has all of them."""

from __future__ import annotations

import pytest

from ..forked import python
from .compare import Compared, compared, planned, summary
from .records import CASES, records
from .scatter import scatter

CHEAP = ("mmseg-unet-64", "timm-nhwc-resnet50-512")
MOST = {"allocated": 0.03, "time": 0.15}


def test_every_record_names_its_source_and_a_program_that_is_there() -> None:
    for record in records():
        assert record.source.startswith("github.com/"), record.id
        assert (CASES / record.program).is_file(), record.id
        assert record.reading in ("main", "alternative")


@pytest.mark.parametrize("name", CHEAP)
def test_what_is_predicted_is_near_what_was_measured(name: str) -> None:
    chosen = [record for record in records() if record.id == name]
    answer = planned(chosen[0], python)
    for record in chosen:
        row = compared(record, answer)
        assert not row.wrong, row
        if record.quantity in MOST:
            assert row.error < MOST[record.quantity], row
        if record.quantity == "time":
            assert row.inside, row
            assert 0.6 < row.low / row.predicted < 1 < row.high / row.predicted < 1.4


def test_errors_are_summed_up_and_drawn() -> None:
    [record] = [r for r in records() if (r.id, r.quantity) == (CHEAP[0], "allocated")]
    rows = [Compared(record, record.measured * ratio) for ratio in (0.9, 1.0, 1.3)]
    found = summary("allocated", rows)
    assert (found.count, round(found.median, 3), round(found.worst, 3)) == (3, 0.1, 0.3)
    drawn = scatter({"allocated": rows}, "dark", "Memory", str, [2.0**30])
    assert drawn.count("<title>") == 3
