"""Well-known networks: their memory is what is known of it, and of what it is made."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.run import HollowRun, hollow_run
from tests.virtual import networks

MIB = 1 << 20


def planned(make: str, optimizer: str, batch: int = 128, gpu: str = "a100-80gb") -> HollowRun:
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


# The most memory that a command and those that it waited for held. A process begins with what the
# one that started it held, so that it is not this one, which may hold gigabytes.
MEASURED = """
import json, resource, subprocess, sys
answer = json.loads(subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True).stdout)
print(json.dumps([answer, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10]))
"""


@pytest.mark.long
def test_gpt2_xl_is_planned_in_little_memory_of_the_host() -> None:
    words = ("--json", "--gpu", "a100-80gb", "train.py", "--network", "gpt2-xl", "--batch-size=2")
    command = [sys.executable, "-m", "anydevice", "plan", *words]
    found = subprocess.run(
        [sys.executable, "-c", MEASURED, *command],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        check=True,
    )
    answers, resident = json.loads(found.stdout)
    [answer] = answers["gpus"]
    assert answer["at_the_peak_bytes"]["parameters"] == 4 * 1_557_611_200
    assert answer["peak_bytes"]["tensors"] > 4 * 4 * 1_557_611_200  # weights, gradients, moments
    assert resident < 600e6
