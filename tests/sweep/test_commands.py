"""The commands `sweep` and `show`, as somebody types them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anydevice import UsageError
from anydevice.sweep.file import read_order

from ..forked import python

SWEEPING = Path(__file__).with_name("sweeping.py")
MODULE = """
def experiment(run):
    if run.lr == 3:
        raise ValueError("three")
    return {"loss": run.lr}

def odd(run):
    return run.lr % 2 == 1

number = 3
"""
ORDER = """
experiment = "mine:experiment"
folder = "runs"
workers = 2
seed = 5
"""


def anydevice(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "anydevice", *words, cwd=folder)


def an_order(folder: Path, rest: str, order: str = ORDER) -> Path:
    (folder / "mine.py").write_text(MODULE)
    (folder / "order.toml").write_text(order + rest)
    return folder


def test_a_sweep_from_a_file_and_its_table(tmp_path: Path) -> None:
    an_order(tmp_path, "[grid]\nlr = [1, 2]\nmomentum = [0.9]\n[[runs]]\nlr = 3\n")
    done = python(SWEEPING, "order.toml", cwd=tmp_path)
    assert done.returncode == 1  # a run failed
    assert "3/3  lr=" in done.stdout
    assert "run 3 failed: ValueError: three" in done.stdout
    shown = anydevice(tmp_path, "show", "runs", "--sort", "-loss")
    assert shown.returncode == 0
    rows = [line.split() for line in shown.stdout.splitlines()[2:5]]
    assert [row[0] for row in rows] == ["2", "1", "3"]
    data = json.loads(anydevice(tmp_path, "show", "runs", "--json").stdout)
    assert [run["state"] for run in data["runs"]] == ["done", "done", "failed"]
    assert data["runs"][0]["seed"] == 5
    assert json.loads((tmp_path / "runs" / "sweep.json").read_text())["experiment"] == (
        "mine:experiment"
    )


def test_a_sample_and_a_condition_from_a_file(tmp_path: Path) -> None:
    rest = 'when = "mine:odd"\nfuse = true\n[sample]\ncount = 2\nlr = { integers = [4, 9] }\n'
    an_order(tmp_path, rest + "[stop]\nwatch = 'loss'\nfirst = 2\n")
    done = python(SWEEPING, "order.toml", "--folder", "there", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(anydevice(tmp_path, "show", "there", "--json").stdout)
    drawn = [run["parameters"]["lr"] for run in data["runs"]]
    assert len(drawn) == 2
    assert all(lr in (5, 7, 9) for lr in drawn)


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ('experiment = "mine"', "a function as module:function, got 'mine'"),
        ('experiment = "mien:experiment"', "expected a module to import for 'mien:experiment'"),
        ('experiment = "mine:experimnt"', "'experimnt' in mine, got a module without it: did you"),
        ('experiment = "mine:number"', "a function of a run, got 'mine:number'"),
        ("folder = 'x'", 'expected experiment = "module:function"'),
        ('experiment = "mine:experiment"', "expected [grid], [sample] or [[runs]]"),
        ('experiment = "mine:experiment"\n[grid]\nlr = []', "one value or more for lr"),
        ('experiment = "mine:experiment"\n[sample]\nlr = {unform = [1, 2]}', "uniform | log"),
        ('experiment = "mine:experiment"\nwrkers = 2', "got 'wrkers': did you mean workers?"),
        ('experiment = "mine:experiment"\n[[runs]]\nlr=1\n[stop]\nwach="a"', "under [stop]"),
        ('experiment = "mine:experiment"\n[grid]\nlr = [1]\nwhen = [1]', "above [grid]"),
        (
            'experiment = "mine:experiment"\nseed = "x"\n[grid]\nlr = [1]',
            "whole number as the seed",
        ),
        ("experiment = ", "expected a file of TOML"),
    ],
)
def test_a_wrong_file_is_a_sentence_and_exit_code_2(
    tmp_path: Path, order: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_order(tmp_path, "", order)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(UsageError) as told:
        read_order(tmp_path / "order.toml", tmp_path / "runs")
    assert sentence in str(told.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sweep", "ordr.toml"], "which does not exist: did you mean order.toml?"),
        (["show", "nowhere"], "expected the folder of a sweep, got nowhere, which does not exist."),
        (
            ["show", "order.toml"],
            "expected the folder of a sweep, got order.toml, which is a file.",
        ),
        (["sweep", "."], "expected a file of TOML, got ., which is a folder."),
        (["show", "."], "expected the folder of a sweep, got ., which has no sweep.json."),
    ],
)
def test_a_wrong_command_is_a_sentence_and_exit_code_2(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    an_order(tmp_path, "")
    done = anydevice(tmp_path, *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--folder", "order.toml"], "expected a folder for the records, got order.toml, which is"),
        ([], "expected 1 or more workers, got 'two'."),
    ],
)
def test_a_wrong_folder_or_number_is_told_before_the_first_run(
    tmp_path: Path, options: list[str], sentence: str
) -> None:
    an_order(tmp_path, "[grid]\nlr = [1]", ORDER.replace("workers = 2", 'workers = "two"'))
    done = anydevice(tmp_path, "sweep", "order.toml", *options)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert sentence in done.stderr


def test_show_costs_no_torch_import(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['anydevice', 'show', 'nowhere']\n"
        "from anydevice.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "2 False\n"
