"""What the tests of training share: a small problem, on the CPU and on a virtual GPU."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from anydevice import virtual

SAMPLES, CLASSES = 130, 3


@pytest.fixture(scope="module")
def virtual_gpu() -> Iterator[None]:
    virtual.enable()
    yield
    virtual.disable()


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param != "cpu":
        request.getfixturevalue("virtual_gpu")
    return torch.device(request.param)


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    """130 points of three classes that a line can nearly tell apart."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, 4, generator=generator)
    return x, (x @ torch.randn(4, CLASSES, generator=generator)).argmax(1)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, CLASSES))
