"""Options of a command and a program, files that a command writes, and its exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest

from anydevice.check.command import parse
from anydevice.errors import UsageError
from anydevice.options import misplaced_option

TRAINS = """
import torch
network = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(network.parameters(), 0.1)
for step in range(3):
    network(torch.ones(8, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text('parser.add_argument("--ignore", "--lr")\n')
    return str(path)


def test_options_may_stand_after_the_program(program):
    options = parse([program, "--gpu", "t4", "--gpu=h100", "--quiet"])
    assert options.gpu == ["t4", "h100"]
    assert options.quiet
    assert list(options.program.program) == [program]


def test_what_the_program_names_is_the_programs_and_so_is_all_after_two_dashes(program):
    options = parse(["--gpu", "t4", program, "--ignore", "x", "--lr", "1", "--", "--gpu", "9"])
    assert options.gpu == ["t4"]
    assert options.ignore == []
    assert list(options.program.program) == [
        *(program, "--ignore", "x", "--lr", "1", "--gpu", "9"),
    ]


def test_an_option_without_its_value_is_a_sentence(program):
    with pytest.raises(UsageError, match="expected a value after --gpu, got none"):
        parse([program, "--gpu"])


@pytest.mark.parametrize(("command", "option"), [("run", "--gpus"), ("plan", "--batch-arg")])
def test_an_option_after_a_program_that_does_not_know_it_is_pointed_out(command, option, program):
    known = ("--gpus", "--batch-arg", "--ignore")
    said = misplaced_option(command, [program, f"{option}=2"], known)
    assert said.startswith(f"{option} comes after {program}")
    assert said.endswith(f"Options of anydevice {command} come before the program.")
    assert not misplaced_option(command, [program, "--ignore", "x", "--", option], known)
    assert not misplaced_option(command, ["torchrun", option], known)


def test_run_and_plan_say_so_and_start_the_program(program):
    Path(program).write_text("import sys; print(sys.argv[1:])")
    for command, code in (("run", 0), ("plan", 2)):  # 2: it does nothing on a GPU
        words = [sys.executable, "-m", "anydevice", command, program, "--gpu", "t4"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "['--gpu', 't4']" in done.stdout + done.stderr
        assert f"anydevice: --gpu comes after {program}" in done.stderr


def test_the_traceback_of_a_program_that_fails_begins_in_the_program(program):
    Path(program).write_text("import torch\nopen('no such file')\n")
    words = [sys.executable, "-m", "anydevice", "check", program]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "No such file" in done.stderr
    assert "runpy" not in done.stderr
    assert "anydevice/" not in done.stderr.replace(program, "")


@pytest.mark.parametrize("command", ["plan", "check"])
def test_a_page_that_cannot_be_written_is_a_sentence_with_exit_code_2(command, program, tmp_path):
    Path(program).write_text(TRAINS)
    page = tmp_path / "page.html"
    page.mkdir()
    words = [sys.executable, "-m", "anydevice", command, "--quiet", "--report", str(page), program]
    done = subprocess.run(words, capture_output=True, text=True)
    assert f"anydevice: {page} could not be written (Is a directory)" in done.stderr
    assert done.returncode == 2
