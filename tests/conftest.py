"""What all tests share: which are skipped where GPUs are missing, and which are slow."""

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

# Threads that wait for work give the core to another worker of pytest-xdist instead of spinning on
# it: the tests take half the time. Read when torch is imported, here and in programs of tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Compiling takes many seconds; the tests of compiled programs do it.
os.environ.setdefault("ANYDEVICE_COMPILE", "eager")

import torch

TESTS = Path(__file__).parent
SLOW = set((TESTS / "slow.txt").read_text().splitlines())

# A shell switches Ctrl-C off in what it runs in the background; the programs that tests start and
# interrupt must have it on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


SOURCES = str(TESTS.parent / "src")


def _refuse_files_of_the_kernel(event: str, arguments: tuple[Any, ...]) -> None:
    """With make test-portable: other systems have none."""
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        callers = [sys._getframe(above).f_code.co_filename for above in (1, 2, 3)]
        ours = [caller for caller in callers if caller.startswith(SOURCES)]
        assert not ours, f"{ours[0]} opens {arguments[0]}"


if os.environ.get("ANYDEVICE_PORTABLE") == "1":
    sys.addaudithook(_refuse_files_of_the_kernel)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, where it is installed
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests wait for disks, for processes that end, for timeouts."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what slow.txt names as slow."""
    for item in items:
        name = getattr(item, "originalname", item.name)
        if f"{os.path.relpath(item.path, TESTS)}::{name}" in SLOW:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # a test's collections need not look through all that was imported and collected


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("gpu"):
        needed = marker.args[0] if marker.args else 1
        present = torch.accelerator.device_count()
        if present < needed:
            pytest.skip(f"needs {needed} GPU(s), found {present}")


@pytest.fixture(params=["meta", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def elsewhere(request: pytest.FixtureRequest) -> torch.device:
    """A device that is not the CPU: PyTorch's meta device, and a GPU where there is one."""
    return torch.device(request.param)
