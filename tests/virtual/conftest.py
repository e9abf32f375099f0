"""One virtual GPU for the tests of a module, gone again at its end."""

from collections.abc import Iterator

import pytest
import torch

from anydevice import virtual


@pytest.fixture(scope="module")
def virtual_gpu() -> Iterator[None]:
    virtual.enable()
    yield
    virtual.disable()


@pytest.fixture
def seeded(virtual_gpu: None) -> None:
    torch.manual_seed(0)
