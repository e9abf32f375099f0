"""What the page carries: not more than it can, and what matters most."""

from itertools import pairwise

import pytest

from anydevice.sweep.page.data import CURVE_NUMBERS, POINTS, device_of, epoch_seconds, page_data
from anydevice.sweep.records.records import Record
from tests.sweep.synthetic import TRACEBACK, make_record


def test_a_long_curve_is_thinned_evenly_from_its_first_to_its_last_epoch() -> None:
    record = make_record({"lr": 0.01}, 1000)
    curves = page_data([record])["curves"]
    [epochs] = curves["epochs"]
    assert len(epochs) == curves["points"] == POINTS[0]
    assert (epochs[0], epochs[-1]) == (1, 1000)
    steps = {later - earlier for earlier, later in pairwise(epochs)}
    assert steps <= {5, 6}
    losses = curves["values"]["loss"][0]
    assert losses[-1] == pytest.approx(record.last["loss"], rel=1e-5)


def test_short_curves_are_whole_and_their_epochs_only_counted() -> None:
    curves = page_data([make_record({"lr": 0.01}, 7), make_record({"lr": 0.1}, 3)])["curves"]
    assert curves["epochs"] == [7, 3]
    assert curves["points"] is None


def test_of_too_many_curves_the_best_are_kept() -> None:
    records = [make_record({"lr": 0.01, "seed": seed}, 30) for seed in range(3000)]
    curves = page_data(records)["curves"]
    kept = curves["runs"]
    numbers = sum(len(run) for figure in curves["values"].values() for run in figure)
    assert numbers <= CURVE_NUMBERS
    assert curves["of"] == 3000 > len(kept) > 300
    by_result = sorted(range(3000), key=lambda run: -records[run].last["val_accuracy"])
    assert set(by_result[: len(kept) // 2]) <= set(kept)
    assert kept == sorted(kept)


def test_failures_with_the_same_text_are_told_once_the_most_frequent_first() -> None:
    records = [make_record({"lr": 0.1, "seed": seed}, 2, failed=True) for seed in range(3)]
    other = Record("other", {"lr": 1.0}, "failed", "ValueError: no")
    failures = page_data([other, *records])["failures"]
    assert failures["kinds"] == 2
    told = [(each["title"], each["runs"]) for each in failures["shown"]]
    assert told == [(TRACEBACK.splitlines()[-1], [1, 2, 3]), ("ValueError: no", [0])]


def test_an_epochs_duration_is_the_median_and_a_gpus_name_says_that_it_is_virtual() -> None:
    epochs = [{"epoch": i, "seconds": seconds} for i, seconds in enumerate((9.0, 1.0, 2.0), 1)]
    record = Record("k", {}, epochs=epochs, device="cuda:1", device_name="Tesla T4", virtual=True)
    assert epoch_seconds(record) == 2.0
    assert device_of(record) == "cuda · Tesla T4 (virtual)"
    assert device_of(Record("k", {})) is None
