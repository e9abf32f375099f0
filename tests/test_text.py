"""Figures as text: one way to write each, in Python and on pages."""

import pytest

from anydevice.errors import did_you_mean
from anydevice.text import counted, duration_text, signal_name

DURATIONS = {
    0: "0 s",
    3e-9: "3 ns",
    1.24e-5: "12.4 µs",
    0.0123: "12.3 ms",
    0.5: "500 ms",
    0.9996: "1 s",
    42.04: "42 s",
    99.4: "99.4 s",
    120: "2 min",
    150: "2.5 min",
    5400: "90 min",
    7200: "2 h",
    100_000: "28 h",
    200_000: "2.3 d",
    9e6: "104 d",
}


@pytest.mark.parametrize(("seconds", "text"), DURATIONS.items())
def test_a_duration_has_the_unit_that_people_would_use(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_one_is_singular() -> None:
    assert [counted(number, "run") for number in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]


def test_a_signal_has_its_name() -> None:
    assert [signal_name(number) for number in (9, 63)] == ["SIGKILL", "signal 63"]


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("acuracy", ["loss", "accuracy"], "did you mean accuracy?"),
        ("ACCURACY", ["loss", "accuracy"], "did you mean accuracy?"),
        ("acc", ["loss", "accuracy"], "did you mean accuracy?"),
        ("", ["loss", "accuracy"], "known are loss, accuracy."),
        ("potato", ["loss", "accuracy"], "known are loss, accuracy."),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_one(
    name: str, known: list[str], hint: str
) -> None:
    assert did_you_mean(name, known) == hint


def test_several_names_may_be_near() -> None:
    assert did_you_mean("b", ["ab", "bc", "d"], most=2) == "did you mean ab or bc?"
