"""The constants of predicted times, and those measured on a machine in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from anydevice.devices.catalogue import card, cards
from anydevice.errors import UsageError
from anydevice.plan.time import rates
from anydevice.plan.time.predict import predict
from anydevice.plan.time.work import Op, Work
from anydevice.tables import plain_text

T4 = card("t4")
COPY = Work([Op("copy", 0, 0, "float32", (), 1e9, 1, False, 0)] * 10)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_every_constant_says_where_it_is_from_and_lies_within_its_range() -> None:
    for rate in rates.rates().values():
        assert rate.source, rate.name
        assert rate.assumed == ("assumed" in rate.source), rate.name
        ends = sorted((rate.quick, rate.slow))
        assert ends[0] <= rate.value <= ends[1], rate.name
        assert set(rate.cards) <= set(cards()), rate.name


def test_the_table_shows_every_constant_with_its_source() -> None:
    shown = rates.table()
    cells = {row[0]: row for row in shown.rows}
    for rate in rates.rates().values():
        assert rate.source in cells[rate.name]
    assert "tensor_cores" in plain_text(shown.__rich__(), width=80)


def test_measured_rates_take_the_place_of_the_tables_for_their_card_alone() -> None:
    before = predict(COPY, T4)
    rates.store(T4, {"bandwidth": 0.4}, "Tesla T4")
    after = predict(COPY, T4)
    assert after.seconds > 1.8 * before.seconds
    assert after.calibrated
    assert not before.calibrated
    assert after.high / after.low < before.high / before.low  # and the range is narrower
    assert not predict(COPY, card("h100")).calibrated


def test_a_damaged_file_is_said_with_what_to_do() -> None:
    path = rates.store(T4, {"bandwidth": 0.5}, "Tesla T4")
    path.write_text("{")
    with pytest.raises(UsageError, match=r"delete it, or measure again with anydevice plan"):
        predict(COPY, T4)
    path.write_text("{}")
    with pytest.raises(UsageError, match="expected the format 'anydevice rates 1'"):
        predict(COPY, T4)


def test_a_constant_that_is_not_known_any_more_is_left_out() -> None:
    rates.store(T4, {"bandwidth": 0.5, "of_another_version": 1.0}, "Tesla T4")
    assert rates.stored(T4) == {"bandwidth": 0.5}
