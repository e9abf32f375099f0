"""Each example runs by the line at its top, and says something."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
IS_SAID = {
    "devices_and_mismatches": "layer(x) is on cuda:1",
    "mixed_precision": "outputs  torch.float16  weights torch.float32",
    "data_parallel": "A batch of 30 over 4 GPUs:",
    "two_networks_two_gpus": "wide  on cuda:1",
    "ddp": "all ranks have the same weights: True",
    "plan": "momentum           10,546",
    "trial_ddp": "on cuda:1: 100.0% of the other 1000 are right",
    "sweep": "12 runs done",
    "gpt": "training on Tesla T4",
    "fsdp2": "the loaded model has the same loss: True",
    "llama3": "rank 1: peak memory",
}


QUICK = ("devices_and_mismatches",)


def line_at_the_top(example: Path) -> str:
    found = re.search(r"^ *((?:anydevice|python) .*)$", example.read_text("utf-8"), re.MULTILINE)
    assert found, f"{example.name} has no line that runs it"
    return found[1]


def run(example: Path) -> subprocess.CompletedProcess[str]:
    command, *words = shlex.split(line_at_the_top(example))
    module = ["-m", "anydevice"] if command == "anydevice" else []
    return subprocess.run(
        [sys.executable, *module, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def example(path: Path) -> object:
    """Most are long; the tests of the rooms do the same in small."""
    marks = [] if path.stem in QUICK else [pytest.mark.long]
    return pytest.param(path, marks=marks, id=path.stem)


@pytest.mark.parametrize("example", [example(path) for path in EXAMPLES])
def test_an_example_runs_by_the_line_at_its_top(example: Path) -> None:
    done = run(example)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert IS_SAID.get(example.stem, "") in done.stdout
    assert len(done.stdout.splitlines()) >= 3
