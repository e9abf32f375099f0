"""What all tests share: tests marked `gpu` are skipped, with the reason, where GPUs are missing."""

import signal

import pytest
import torch

# A shell switches Ctrl-C off in what it runs in the background; the programs that tests start and
# interrupt must have it on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
