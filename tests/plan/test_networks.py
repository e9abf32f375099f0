"""Well-known networks: their memory is what is known of it, and of what it is made."""

import pytest
import torch
import torch.nn.functional as F

from anydevice.plan.hollow import Run, hollow_run
from anydevice.plan.isolated import isolated
from tests.virtual import networks

MIB = 1 << 20


def planned(make: str, optimizer: str, batch: int = 128, gpu: str = "a100-80gb") -> Run:
    def train() -> None:
        with torch.device("cuda"):
            network = eval(f"networks.{make}", {"networks": networks})
        step = OPTIMIZERS[optimizer](network.parameters())
        while True:
            x = torch.rand(batch, 3, 224, 224, device="cuda")
            y = torch.randint(1000, (batch,), device="cuda")
            loss = F.cross_entropy(network(x), y)
            step.zero_grad()
            loss.backward()
            step.step()

    run = isolated(lambda: hollow_run(train, gpu))
    assert run
    return run


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.01),
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "Adam": torch.optim.Adam,
}


# The bytes of all tensors alive at the peak, as counted by hand, layer by layer, for fp32.
@pytest.mark.parametrize(
    ("make", "mebibytes"),
    [("alexnet()", (925, 1158, 1391)), ("vgg16()", (10_018, 10_546, 11_074))],
)
def test_the_bytes_of_tensors_alone_are_those_known(make: str, mebibytes: tuple[int, ...]) -> None:
    for optimizer, expected in zip(OPTIMIZERS, mebibytes, strict=True):
        run = planned(make, optimizer)
        assert run.tensors / MIB == pytest.approx(expected, rel=0.005)
        assert run.tensors < run.allocated <= run.reserved < run.device_bytes
