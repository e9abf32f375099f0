"""Whole training steps on hollow GPUs: nothing is computed, and the memory is counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from ..forked import python
from .own_process import START

TRAIN = """
import json, sys
import torch, torch.nn.functional as F
import anydevice.virtual
import networks

make, batch, optimizer, precision = json.loads(sys.argv[1])
anydevice.virtual.enable(gpu="a100-80gb", hollow=True)
with torch.device("cuda"):
    network = eval("networks." + make)
step = eval("torch.optim." + optimizer)(network.parameters())
losses = []
for _ in range(3):
    if make.startswith("GPT2"):
        inputs = labels = torch.randint(50257, (batch, 1024), device="cuda")
    else:
        inputs = torch.rand(batch, 3, 224, 224, device="cuda")
        labels = torch.randint(1000, (batch,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
        loss = F.cross_entropy(network(inputs).flatten(0, -2), labels.flatten())
    step.zero_grad()
    loss.backward()
    step.step()
print(json.dumps({
    "parameters": sum(p.numel() for p in network.parameters()),
    "peak": torch.cuda.memory_stats()["requested_bytes.all.peak"] / 2**20,
    "reserved": torch.cuda.max_memory_reserved() / 2**20,
    "resident": most_resident() / 2**20,
    "loss": loss.item(),
}))
"""


def train(make: str, batch: int, optimizer: str, precision: str = "fp32") -> dict[str, Any]:
    described = json.dumps([make, batch, optimizer, precision])
    done = python("-c", START + TRAIN, described, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("make", "batch", "parameters"),
    [
        ("vgg16()", 128, 138_357_544),
        pytest.param("resnet50()", 64, 25_557_032, marks=pytest.mark.long),
        ("GPT2()", 4, 124_439_808),
        ("GPT2(1600, 48, 25)", 1, 1_557_611_200),
    ],
)
def test_a_known_network_trains_and_takes_no_memory_of_the_host(
    make: str, batch: int, parameters: int
) -> None:
    result = train(make, batch, "AdamW", "bf16")
    assert result["parameters"] == parameters
    assert result["loss"] == 0  # nothing is computed, and what is read is zero
    state = 4 * 4 * parameters / 2**20  # weights, gradients and AdamW's two moments
    assert result["peak"] > state
    assert result["reserved"] >= result["peak"]
    assert result["resident"] < 1000 < result["peak"]


# The bytes of all tensors alive at the peak, as counted by hand, layer by layer, for fp32.
@pytest.mark.parametrize(
    ("make", "optimizer", "mebibytes"),
    [
        ("alexnet()", "SGD", 925),
        ("alexnet()", "Adam", 1391),
        ("vgg16()", "SGD", 10_018),
        ("vgg16()", "Adam", 11_074),
    ],
)
def test_the_peak_is_what_is_known_of_these_networks(
    make: str, optimizer: str, mebibytes: int
) -> None:
    assert train(make, 128, optimizer)["peak"] == pytest.approx(mebibytes, rel=0.005)
