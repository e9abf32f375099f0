import json
import math
from pathlib import Path

import pytest

from anydevice import UsageError
from anydevice.sweep.grid import Run
from anydevice.sweep.records.records import Record, Sheet, enter, folder_of, read, read_all, write


def a_record(lr: float, **more) -> Record:
    run = Run({"lr": lr})
    return Record(run.key, run.parameters, **more)


def a_sweep(folder: Path, *records: Record) -> Path:
    enter(folder, Sheet(["lr"], "train:experiment", [record.key for record in records]))
    for record in reversed(records):
        write(folder, record)
    return folder


def test_records_are_read_in_the_sweeps_order(tmp_path: Path) -> None:
    records = [a_record(lr, state="done", epochs=[{"epoch": 1, "loss": lr}]) for lr in (3, 1, 2)]
    assert read_all(a_sweep(tmp_path, *records)) == (records, [])


def test_figures_that_are_not_finite_are_strict_json_and_come_back(tmp_path: Path) -> None:
    record = a_record(1, epochs=[{"loss": math.inf, "a": -math.inf, "b": math.nan, "c": "x"}])
    a_sweep(tmp_path, record)
    text = (folder_of(tmp_path, record.key) / "record.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    again = read(tmp_path, record.key)
    assert isinstance(again, Record)
    assert again.last["loss"] == math.inf
    assert again.last["a"] == -math.inf
    assert math.isnan(again.last["b"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"format": "anydevice run 1", "key"', "line 1"),
        (b'{"key": "x"}', "'format' is missing"),
        (b'{"format": "anydevice run 9"}', "expected the format"),
        (b"[1]", ""),
        (b"\xff\xfe", ""),
        (
            b'{"format": "anydevice run 1", "key": "x", "parameters": {}, "state": "done", '
            b'"epochs": [1]}',
            "epochs",
        ),
        (
            b'{"format": "anydevice run 1", "key": "x", "parameters": {}, "state": "done", '
            b'"epochs": []}',
            "the record of run x",
        ),
    ],
)
def test_a_damaged_record_is_reported_and_the_rest_shown(
    tmp_path: Path, text: bytes, reason: str
) -> None:
    whole, hurt = a_record(1), a_record(2)
    a_sweep(tmp_path, whole, hurt)
    path = folder_of(tmp_path, hurt.key) / "record.json"
    path.write_bytes(text)
    records, damaged = read_all(tmp_path)
    assert records == [whole]
    assert [each.path for each in damaged] == [path]
    assert reason in damaged[0].reason


def test_a_damaged_sheet_is_reported_and_the_runs_shown(tmp_path: Path) -> None:
    record = a_record(1)
    (a_sweep(tmp_path, record) / "sweep.json").write_text("{")
    records, damaged = read_all(tmp_path)
    assert records == [record]
    assert len(damaged) == 1
    with pytest.raises(UsageError, match="got a damaged one"):
        enter(tmp_path, Sheet(["lr"]))


def test_the_folder_of_another_sweep_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    a_sweep(tmp_path, a_record(1))
    before = (tmp_path / "sweep.json").read_bytes()
    for other in (Sheet(["lr"], "other:experiment"), Sheet(["lr", "width"], "train:experiment")):
        with pytest.raises(UsageError, match="the runs of another"):
            enter(tmp_path, other)
    assert (tmp_path / "sweep.json").read_bytes() == before


def test_a_sweep_may_grow(tmp_path: Path) -> None:
    a_sweep(tmp_path, a_record(1))
    together = enter(tmp_path, Sheet(["lr"], "train:experiment", [a_record(2).key]))
    assert together.runs == [a_record(1).key, a_record(2).key]


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder"])
def test_a_folder_that_is_not_a_sweeps_is_told(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "runs"
    if what == "a file":
        folder.write_text("")
    elif what == "an empty folder":
        folder.mkdir()
    with pytest.raises(UsageError, match="expected the folder of a sweep"):
        read_all(folder)


def test_a_file_in_the_way_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UsageError, match=r"folder for the records, got .* is a file"):
        enter(tmp_path / "runs", Sheet(["lr"]))
