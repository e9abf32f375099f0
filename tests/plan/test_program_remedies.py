"""What would help a program that does not fit: some changes are run, others estimated."""

import json
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import attention
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from anydevice.devices.catalogue import card
from anydevice.plan.context import Context
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.planning import plan
from anydevice.plan.remedies.programs import remedies_for_program
from anydevice.plan.subjects import subject_of

LAYERS, WIDTH = 6, 2048


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for linear in self.linears:
            x = linear(x).relu()
        return x


class Network(nn.Module):
    def __init__(self, saves):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.saves = saves

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.saves else layer(x)
        return x


def train(batch=3 << 15, saves=False):
    network = Network(saves).cuda()
    optimizer = torch.optim.Adam(network.parameters())
    while True:
        network(torch.ones(batch, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def found():
    """As `ad.plan(train, "t4", batch_arg="batch")` has it, without the search for a batch."""
    subject, gpus = subject_of(train, "batch", None), HollowGPUs("t4", steps=2)
    return remedies_for_program(subject, gpus, gpus.run(subject, subject.name), "batch")


def test_a_program_that_does_not_fit_is_told_what_helps(found):
    tried = {remedy.name: remedy for remedy in found.tried}
    assert not found.as_it_is.fits
    assert tried["batch in 2 parts"].fits
    assert tried["batch in 2 parts"].how == "batch 49152, 2 backward passes before each step"
    assert "batch in 4 parts" not in tried  # 2 are enough
    assert "expandable segments" not in tried  # the tensors alone are more than the card has
    assert found.tried[0].name == "batch in 2 parts"  # what was run, before what is estimated
    assert "~ " in str(found)
    assert "Estimated rows (~)" in str(found)
    estimated = {row["name"] for row in found.to_dict()["tried"] if row["estimated"]}
    assert estimated >= {"checkpointing", "half precision", "8-bit optimizer"}


def test_attention_is_tried_with_the_kernels_that_the_program_rules_out():
    def attend():
        x = torch.randn(2, 4, 512, 16, device="cuda", dtype=torch.half, requires_grad=True)
        optimizer = torch.optim.SGD([x], 1e-3)
        with attention.sdpa_kernel(attention.SDPBackend.MATH):
            while True:
                scaled_dot_product_attention(x, x, x).sum().backward()
                optimizer.step()

    subject, gpus = subject_of(attend, None, None), HollowGPUs("a100-80gb", steps=2)
    run = gpus.run(subject, subject.name)
    assert run.attention == ["math"]
    tried = {one.name: one for one in remedies_for_program(subject, gpus, run, None).tried}
    assert tried["fused attention"].attention == ["flash"]
    assert tried["fused attention"].device_bytes < run.device_bytes


@pytest.mark.long
def test_what_is_estimated_is_close_to_what_it_would_be(found):
    [guess] = [one for one in found.tried if one.name == "checkpointing"]
    assert guess.estimated
    real = HollowGPUs("a100-80gb", steps=2).run(partial(train, saves=True), "train")
    context = Context.of(card("t4")).value
    assert real.reserved == pytest.approx(guess.device_bytes - context, rel=0.2)


@pytest.mark.long
def test_a_program_that_fits_has_remedies_only_if_asked():
    answer = plan(partial(train, 64), "t4", steps=2, remedies=True)
    assert [remedy.name for remedy in answer["t4"].remedies.tried if not remedy.estimated] == [
        "expandable segments"
    ]


@pytest.mark.long
def test_a_plan_has_them_where_the_program_does_not_fit():
    assert plan(partial(train, 64), "t4", steps=2)["t4"].remedies is None
    answer = plan(train, "t4", steps=2, batch_arg="batch")
    assert answer["t4"].remedies.best.name == "batch in 2 parts"
    [one] = json.loads(answer.to_json())["gpus"]
    assert one["remedies"]["tried"][0]["name"] == "batch in 2 parts"
