"""What experiments, files and figures may do to a sweep that must not harm it or the terminal."""

import json
import os
import resource
import sys

import pytest
from rich.console import Console

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.sweep.file import read_order
from anydevice.sweep.processes.runner import TAIL, tail_of
from anydevice.sweep.records.records import Damaged, Record, folder_of, read, read_sheet, write
from anydevice.tables import Table, plain_text, printable
from tests.sweep import fuzz


def tracked(folder, **figures):
    sweep = ad.Sweep(None, ad.grid(lr=[1]))
    with sweep.track(sweep.runs[0], folder) as t:
        t.epoch(**figures)
    return sweep.results(folder)


def changes_directory(run):
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    return {"loss": run.lr}


def test_an_experiment_may_change_the_directory_of_a_relative_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = ad.Sweep(changes_directory, ad.grid(lr=[0.1, 0.2]))
    results = sweep.run("runs/first", verbose=False)
    assert [(record.state, record.error) for record in results] == [("done", None)] * 2
    assert not list((tmp_path / "elsewhere").rglob("record.json"))


def test_a_loop_may_change_the_directory_of_a_relative_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = ad.Sweep(None, ad.grid(lr=[1]))
    with sweep.track(sweep.runs[0], "runs") as t:
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        t.epoch(loss=1.0)
    assert ad.Results.of(tmp_path / "runs")[0].state == "done"


def limits_its_files(run):
    if run.a == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    return {"loss": float(run.a)}


def becomes_nobody(run):
    if run.a == 1:
        os.setuid(65534)
    return {"loss": float(run.a)}


@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
@pytest.mark.parametrize("experiment", [limits_its_files, becomes_nobody])
def test_a_run_that_forbids_itself_to_write_does_not_end_the_sweep(tmp_path, experiment):
    if experiment is becomes_nobody and os.getuid():
        pytest.skip("only root may become another user")
    results = ad.Sweep(experiment, ad.grid(a=[1, 2])).run(tmp_path, verbose=False)
    assert [record.state for record in results] == ["failed", "done"]
    assert "could not be written" in results[0].error


def test_only_the_end_of_an_output_is_read(tmp_path):
    output = tmp_path / "output.txt"
    with output.open("wb") as file:
        file.truncate(10**12)  # a hole of a terabyte, which would not fit into memory
        file.seek(0, os.SEEK_END)
        file.write("é".encode() * 3 * TAIL)
    assert tail_of(output) == "é" * TAIL
    assert tail_of(tmp_path / "none") == ""
    assert tail_of(tmp_path) == ""


FIGURES = [
    {"loss": 1.0, "seconds": "fast"},
    {"loss[/val]": 1.0},
    {"loss[train]": 1.0, "loss[val]": 2.0},
    {"loss": 1.0, "note": "\x1b[31mred\x07"},
    {"loss": 1.0, "note": "half \ud83d of a pair"},
    {"loss": 2**1000},
    {"loss": 1.0, "half \udc80": 2.0},
]


@pytest.mark.parametrize("figures", FIGURES)
def test_odd_figures_are_shown_as_they_are(tmp_path, figures):
    results = tracked(tmp_path, **figures)
    shown = str(results.table())
    for name in figures:
        assert printable(name.encode(errors="backslashreplace").decode()) in shown or (
            name == "seconds"
        )
    assert "\x1b" not in shown
    assert "\x07" not in shown
    json.loads(results.to_json().encode())
    results.to_csv(tmp_path / "all.csv")
    assert results.report().read_text("utf-8")


def test_a_figure_that_no_float_can_hold_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"below 2\*\*1023 for 'loss', got one of 16610 bits"):
        tracked(tmp_path, loss=10**5000)
    with pytest.raises(UsageError, match="for 'lr'"):
        ad.grid(lr=[10**400])


def test_markup_and_escapes_do_not_reach_the_terminal():
    table = Table(["[bold]a", "b[/x]"], [["\x1b]0;title\x07", "\u202etxt"]], title="[red]t[/y]")
    for drawn in (table, Table(table.columns, table.rows * 600)):
        with Console(width=100, force_terminal=True) as console, console.capture() as capture:
            console.print(drawn)
        assert "\x1b]0" not in capture.get()
        assert "\u202e" not in capture.get()
        assert "[bold]a" in plain_text(drawn)
        assert r"\x1b]0;title\x07" in plain_text(drawn)
    assert "[red]t[/y]" in str(table)


def test_an_error_with_escapes_is_shown_without_them(tmp_path):
    sweep = ad.Sweep(None, ad.grid(lr=[1]))
    with pytest.raises(ValueError), sweep.track(sweep.runs[0], tmp_path):
        raise ValueError("\x1b[2Jgone \ud800")
    results = sweep.results(tmp_path)
    assert r"\x1b[2Jgone \ud800" in plain_text(results.shown(), width=300)
    assert "\x1b[2J" not in results.report().read_text("utf-8")


GOOD = 'experiment = "os:getcwd"\nfolder = "x"\n'
TOML = [
    "experiment = 5",
    'experiment = "..a:b"\nfolder = "x"',
    'experiment = "a\\u0000:b"\nfolder = "x"',
    'experiment = "os:path..x"\nfolder = "x"',
    'experiment = "os:getcwd"\nfolder = 5\n[grid]\nlr = [1]',
    GOOD + "grid = 5",
    GOOD + "[grid]\nlr = 5",
    GOOD + "[grid]\nlr = [2020-01-01]",
    GOOD + "[grid]\nlr = [nan]",
    GOOD + '[sample]\ncount = "x"\nlr = [1]',
    GOOD + '[sample]\ncount = 1\nrandom_seed = "x"\nlr = [1]',
    GOOD + '[sample]\ncount = 1\nlr = {uniform = ["a", 1]}',
    GOOD + "[sample]\ncount = 1\nlr = {integers = [inf, nan]}",
    GOOD + "[sample]\ncount = 1\nlr = {uniform = [-inf, inf]}",
    GOOD + "[sample]\ncount = 1\nlr = 2020-01-01",
    GOOD + "runs = [1, 2]",
    GOOD + "runs = [{epoch = 1}]",
    GOOD + "runs = {a = 1}",
    GOOD + "when = 5\n[grid]\nlr = [1]",
    GOOD + 'seed = "x"\n[grid]\nlr = [1]',
    GOOD + "gpus = [1]\n[grid]\nlr = [1]",
    GOOD + 'fuse = "yes"\n[grid]\nlr = [1]',
    GOOD + "stop = 5\n[grid]\nlr = [1]",
    GOOD + '[grid]\nlr = [1]\n[stop]\nfirst = "x"',
    GOOD + "[grid]\nlr = [1]\n[stop]\nwatch = 1",
    GOOD + "[grid]\nlr = [1]\n[stop]\nwhat = 1",
    "x = " + "[" * 5000 + "]" * 5000,
    "\udcff",
]


@pytest.mark.parametrize("text", TOML)
def test_a_wrong_file_of_a_sweep_is_wrong_use_and_no_traceback(tmp_path, text):
    path = tmp_path / "grid.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"expected|did you mean"):
        read_order(path)


def a_record(folder):
    record = Record("key", {"lr": 1}, state="done", epochs=[{"epoch": 1, "loss": 0.5}], started="x")
    write(folder, record)
    return folder_of(folder, "key") / "record.json", record


def test_one_flipped_bit_of_a_record_is_found(tmp_path):
    path, record = a_record(tmp_path)
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        assert isinstance(read(tmp_path, "key"), Damaged)
    path.write_bytes(good)
    assert read(tmp_path, "key") == record


def test_a_record_from_before_checksums_is_read(tmp_path):
    path, record = a_record(tmp_path)
    entry = json.loads(path.read_text())
    del entry["checksum"]
    path.write_text(json.dumps({**entry, "format": "anydevice run 1"}))
    assert read(tmp_path, "key") == record
    path.write_text(json.dumps(entry))
    assert isinstance(read(tmp_path, "key"), Damaged)  # its checksum was taken away
    (tmp_path / "sweep.json").write_text(
        '{"format": "anydevice sweep 1", "parameters": ["lr"], "experiment": null}'
    )
    assert read_sheet(tmp_path).parameters == ["lr"]


def test_mutated_records_are_damaged_or_the_same():
    counts = fuzz.fuzzed(100, seed=3)
    assert counts["damaged: damaged"] > 10
    assert counts.total() == 100
