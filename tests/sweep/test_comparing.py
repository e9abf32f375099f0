"""Runs compared: means over seeds, importance of parameters, two side by side, names and tags."""

import math
import random

import pytest

from anydevice.errors import UsageError
from anydevice.sweep.grid import grid, names_of
from anydevice.sweep.records.records import Record, Sheet, enter, write
from anydevice.sweep.results.results import Results


def swept(folder, runs, figure, **more):
    enter(folder, Sheet(names_of(runs), "mine", [run.key for run in runs]))
    for run in runs:
        epochs = [{"epoch": 1, "loss": figure(run)}]
        about = {"state": "done", "device": "cpu", "seconds": 2.0, "seed": 0, **more}
        write(folder, Record(run.key, run.parameters, epochs=epochs, **about))
    return Results.of(folder)


def test_means_and_deviations_over_seeds(tmp_path):
    runs = grid(lr=[0.1, 0.01], seed=[0, 1, 2])
    found = swept(tmp_path, runs, lambda run: 10 * run.lr + run.seed)
    table = found.over_seeds()
    assert table.columns == ["lr", "runs", "loss"]
    assert table.rows == [["0.01", "3", "1.1 ± 1"], ["0.1", "3", "2 ± 1"]]
    assert "± deviation" in str(found)


def test_without_seeds_there_is_no_mean(tmp_path):
    found = swept(tmp_path, grid(lr=[0.1, 0.01]), lambda run: run.lr)
    assert "±" not in str(found)
    with pytest.raises(UsageError, match="the parameter seed alone"):
        found.over_seeds()


def test_a_run_that_is_not_finite_makes_no_mean(tmp_path):
    runs = grid(lr=[1], seed=[0, 1])
    found = swept(tmp_path, runs, lambda run: math.nan if run.seed else 1.0)
    assert found.over_seeds().rows == [["1", "2", "nan"]]


def test_the_parameter_that_matters_explains_the_most(tmp_path):
    chance = random.Random(0)
    runs = grid(lr=[n / 40 for n in range(1, 41)], optimizer=["a", "b"], idle=[1])
    found = swept(
        tmp_path, runs, lambda r: r.lr + 0.02 * (r.optimizer == "a") + chance.gauss(0, 0.02)
    )
    shares = found.importance()
    assert list(shares) == ["lr", "optimizer"]  # the idle one has one value only
    assert shares["lr"] > 0.8
    assert shares["optimizer"] < 0.1
    assert sum(shares.values()) <= 1


def test_what_does_not_matter_explains_nothing(tmp_path):
    chance = random.Random(3)
    found = swept(tmp_path, grid(a=[1, 2, 3], b=list(range(20))), lambda r: chance.random())
    assert all(share < 0.15 for share in found.importance("loss").values())


def test_two_runs_side_by_side(tmp_path):
    found = swept(tmp_path, grid(lr=[0.1, 0.01], depth=[3]), lambda run: run.lr)
    rows = {row[0]: row[1:] for row in found.compare(1, 2).rows}
    assert rows["lr"] == ["0.1", "0.01", "*"]
    assert rows["depth"] == ["3", "3", ""]
    assert rows["loss"] == ["0.1", "0.01", "*"]
    with pytest.raises(UsageError, match="two runs or more to compare, got 1"):
        found.compare(1)
    with pytest.raises(UsageError, match=r"the number or the name of a run, got '9': there are 2"):
        found.compare(1, 9)


def test_runs_have_names_tags_and_notes(tmp_path):
    found = swept(tmp_path, grid(lr=[0.1, 0.01]), lambda run: run.lr)
    assert "name" not in found.table().columns
    found.annotate(2, name="baseline", tags=["paper", "small"], note="as in the table")
    again = Results.of(tmp_path)
    assert [row["name"] for row in again.rows()] == [None, "baseline"]
    assert again.rows()[1]["tags"] == "paper, small"
    assert again.notes[again[1].key].note == "as in the table"
    assert again.compare(1, "baseline").columns[2] == "baseline"
    again.annotate("baseline", name="")
    assert not Results.of(tmp_path)._names
    assert Results.of(tmp_path).rows()[1]["tags"] == "paper, small"


def test_notes_that_make_no_sense_are_refused(tmp_path):
    found = swept(tmp_path, grid(lr=[0.1, 0.01]), lambda run: run.lr)
    found.annotate(1, name="first")
    for wrong, said in [
        ({"run": 2, "name": "first"}, "a name that no other run has"),
        ({"run": 2, "tags": "paper"}, r"write tags=\['paper'\]"),
        ({"run": 2, "name": "a\nb"}, "of one line"),
        ({"run": 7, "name": "x"}, "the number or the name of a run"),
    ]:
        with pytest.raises(UsageError, match=said):
            found.annotate(**wrong)


def test_damaged_notes_are_none(tmp_path):
    found = swept(tmp_path, grid(lr=[0.1, 0.01]), lambda run: run.lr)
    for text in ("{", "[1]", '{"format": "anydevice notes 1", "name": 3, "tags": [], "note": ""}'):
        (tmp_path / "runs" / found[0].key / "notes.json").write_text(text)
        assert Results.of(tmp_path).notes == {}
