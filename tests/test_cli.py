import json
import os
import subprocess
import sys

import pytest

from .forked import python


def anydevice(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anydevice", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def forked(*words: str) -> subprocess.CompletedProcess[str]:
    """Where the command imports torch anyway."""
    return python("-m", "anydevice", *words)


def test_devices_shows_the_cpu_and_the_versions() -> None:
    done = anydevice("devices")
    assert done.returncode == 0
    assert "cpu" in done.stdout
    assert "PyTorch" in done.stdout
    assert done.stderr == ""


def test_a_pipe_gets_whole_lines_without_colours() -> None:
    done = anydevice("devices", "--known", COLUMNS="20")
    assert "NVIDIA GeForce RTX 4090" in done.stdout
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout


def test_devices_as_json() -> None:
    data = json.loads(forked("devices", "--json").stdout)
    assert data["cpu"]["device"] == "cpu"
    assert (data["why_no_gpu"] is None) == bool(data["gpus"])


def test_devices_for_an_issue() -> None:
    lines = forked("devices", "--issue").stdout.splitlines()
    assert any(line.startswith("torch: ") for line in lines)


def test_run_is_among_the_commands_and_has_help_of_its_own() -> None:
    assert "Run an unmodified program on virtual GPUs" in anydevice("--help").stdout
    assert "--memory SIZE" in anydevice("run", "--help").stdout


def test_version() -> None:
    assert anydevice("--version").stdout.startswith("anydevice 0.")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["devicse"], "Did you mean 'devices'?"),
        (["devices", "--jsn"], "--json"),
        (["devices", "more"], "unexpected extra argument"),
        (["devices", "--json", "--issue"], "expected one of --json, --issue, --known"),
    ],
)
def test_wrong_use_is_a_sentence_and_exit_code_2(words: list[str], hint: str) -> None:
    done = anydevice(*words)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


ENCODED = """
import runpy, sys
sys.stdout.reconfigure(encoding=sys.argv.pop(1))
runpy.run_module("anydevice", run_name="__main__")
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_unicode_gets_the_nearest_characters(encoding: str) -> None:
    for words in (["devices"], ["devices", "--known"], ["devices", "--issue"]):
        done = python("-c", ENCODED, encoding, *words)
        assert done.returncode == 0, done.stderr
        assert "?" not in done.stdout.replace("devices?", "")


def test_a_full_disk_is_a_sentence_and_exit_code_1() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "anydevice", "devices", "--known"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("anydevice: [Errno 28] No space left")
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m anydevice devices --known | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.strip() in ("0", "1")
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell, monkeypatch):
    from typer.completion import get_completion_script
    from typer.testing import CliRunner

    from anydevice.cli import app

    script = get_completion_script(
        prog_name="anydevice", complete_var="_ANYDEVICE_COMPLETE", shell=shell
    )
    assert "_ANYDEVICE_COMPLETE" in script
    environment = {
        "_ANYDEVICE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "anydevice dev",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "anydevice dev",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    answer = CliRunner().invoke(app, [], env=environment, prog_name="anydevice")
    assert "devices" in answer.output
