"""Test suites written for GPUs run with `--virtual-gpus`, this project's own among them."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..forked import python

ROOT = Path(__file__).parents[2]

SUITE = """
import pytest, torch

AVAILABLE = torch.cuda.is_available()  # asked while the tests are collected, as suites do

@pytest.mark.skipif(not AVAILABLE, reason="needs a GPU")
def test_on_one_gpu():
    x = torch.ones(3, device="cuda")
    assert (x + x).sum().item() == 6
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)

@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_two_gpus():
    assert torch.ones(3, device="cuda:1").to("cuda:0").device.index == 0
"""
# Torch is loaded with the GPUs in place: torch.cuda is what it is on a CUDA build.
BASES = """
import torch.cuda.streams

def test_bases():
    assert torch.cuda.Stream.__mro__[1].__name__ == "CudaStreamBase"
    assert torch.cuda._exchange_device is torch._C._cuda_exchangeDevice
"""


# Without a plugin whose import lasts as long as that of torch.
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]


def pytest_on(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PYTEST, *words], cwd=folder, capture_output=True, text=True)


def test_a_suite_with_tests_for_gpus_runs_them(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_bases.py").write_text(BASES)
    done = pytest_on("--virtual-gpus", "2:t4", folder=tmp_path)
    assert "virtual GPUs: 2 × Tesla T4 (nothing runs on a real GPU)" in done.stdout
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.long
def test_each_worker_of_xdist_has_the_gpus(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "conftest.py").write_text("import torch\nassert torch.cuda.device_count() == 2")
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = pytest_on("--virtual-gpus", "2:t4", "-n", "2", folder=tmp_path)
    assert "2 passed" in done.stdout, done.stdout


CHILDREN = """
import os, subprocess, sys
import pytest

def count(**changed):
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"],
                          env={**os.environ, **changed}, capture_output=True, text=True)
    return done.stdout, done.stderr

def work(rank):
    import torch
    assert torch.ones(1, device=f"cuda:{rank}").item() == 1

def test_a_process():
    assert count() == ("2\\n", "")
    assert count(CUDA_VISIBLE_DEVICES="1") == ("1\\n", "")

def test_spawned_processes():
    import torch
    torch.multiprocessing.spawn(work, nprocs=2)

def test_a_suite_in_a_suite(tmp_path):
    (tmp_path / "test_inner.py").write_text(
        "import torch\\ndef test_three(): assert torch.cuda.device_count() == 3")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
               "-p", "no:hypothesispytest", "--virtual-gpus", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
"""


@pytest.mark.parametrize(
    ("chosen", "count"),
    [("test_a_process", 1), pytest.param("test_", 3, marks=pytest.mark.long)],
)
def test_processes_that_tests_start_have_the_gpus(tmp_path: Path, chosen: str, count: int) -> None:
    (tmp_path / "test_children.py").write_text(CHILDREN)
    done = pytest_on("--virtual-gpus", "2:t4", "-k", chosen, folder=tmp_path)
    assert f"{count} passed" in done.stdout, done.stdout


def test_the_environment_is_as_it_was_when_the_tests_are_done(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    program = (
        "import os, pytest\n"
        "before = dict(os.environ)\n"
        "assert pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:hypothesispytest',"
        "                    '--virtual-gpus', '1']) == 0\n"
        "print({name for name in before.keys() | os.environ.keys()\n"
        "       if before.get(name) != os.environ.get(name) and not name.startswith('PYTEST_')})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout


def test_without_the_option_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    done = python(*PYTEST[1:], cwd=tmp_path)
    assert "2 skipped" in done.stdout
    assert "virtual" not in done.stdout


def test_wrong_values_are_a_sentence(tmp_path: Path) -> None:
    for wrong, hint in (
        ("two", "expected --virtual-gpus N or N:KIND"),
        ("0", "expected 1 to 16 virtual GPUs"),
        ("17", "expected 1 to 16 virtual GPUs"),
        ("1:rtx-4091", "rtx-4090"),
    ):
        done = pytest_on("--virtual-gpus", wrong, folder=tmp_path)
        assert done.returncode == 4
        assert hint in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.long
def test_the_room_of_devices_holds_on_virtual_gpus() -> None:
    """All that is marked `gpu` there: choosing, moving, placing and explaining on two GPUs."""
    done = pytest_on(
        "--virtual-gpus",
        "2",
        "-m",
        "gpu",
        "-q",
        "tests/devices",
        "tests/test_readme.py",
        folder=ROOT,
    )
    assert done.returncode == 0, done.stdout
