"""Everything that the README and the docs show is run here."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anydevice as ad

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
VENV = ROOT / ".venv" / "bin"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def page(path: Path) -> object:
    """What docs/bench.md measures takes long; tests/bench measures less of it."""
    marks = [pytest.mark.long] if path.name == "bench.md" else []
    return pytest.param(path, marks=marks, id=path.name)


@pytest.mark.parametrize("page", [page(path) for path in PAGES])
def test_the_python_examples_of_a_page_run_one_after_the_other(page: Path) -> None:
    code = "\n".join(blocks(page.read_text(), "python"))
    assert code
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


def test_the_commands_of_the_table_run() -> None:
    commands = re.findall(r"^\| `(anydevice [^`]*)` \|", README, re.MULTILINE)
    assert commands
    for command in commands:
        words = [sys.executable, "-m", *shlex.split(command)]
        assert subprocess.run(words, capture_output=True).returncode == 0, command


def test_every_function_of_the_table_exists_and_every_function_is_in_the_table() -> None:
    table = README.partition("## The functions")[2]
    named = set(re.findall(r"`ad\.(\w+)\(", table))
    rooms = {"data", "virtual"}
    assert named == set(ad.__all__) - {"UsageError", "DeviceNotFound", "__version__", *rooms}


@pytest.mark.long
@pytest.mark.skipif(not VENV.exists(), reason="the set-up was not made by make")
def test_make_demo_runs_and_is_quick_the_second_time() -> None:
    first, done = (
        subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True) for _ in range(2)
    )
    assert first.returncode == done.returncode == 0
    assert "pip install" not in done.stdout
    assert "PyTorch" in done.stdout
    assert "The 12 runs in build/demo are done" in done.stdout
    assert (ROOT / "build" / "demo" / "report.html").read_text().startswith("<!doctype html>")


def test_both_commands_of_the_readme_are_targets() -> None:
    commands = [line.partition("#")[0].split() for line in blocks(README, "bash")[0].splitlines()]
    assert commands == [["make", "demo"], ["make", "test"]]
    for command in commands:
        dry = [*command, "--dry-run"]
        assert subprocess.run(dry, cwd=ROOT, capture_output=True).returncode == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the README's GPU is a CUDA one")
def test_the_note_is_as_the_readme_shows_it(tmp_path: Path) -> None:
    program = blocks(README, "python")[0].replace("    batch = ad.move(batch, device)\n", "")
    machine = ad.virtual.enabled()
    if machine:  # the line numbers stay: the program has an empty line there
        enable = f"\nad.virtual.enable({machine.gpus})\ndevice ="
        program = program.replace("\n\ndevice =", enable)
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True
    )
    shown = blocks(README, "text")[0].splitlines()
    for line in shown[1:]:
        assert line in done.stderr.splitlines()
