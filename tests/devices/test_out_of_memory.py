"""Out of memory: the explanation says what holds it, and how to find a batch that fits."""

import gc
import sys

import pytest
import torch
from torch import nn

import anydevice as ad

MIB = 1 << 20


def explained(program, memory):
    gc.collect()  # what an error of the test before kept
    with ad.virtual_gpus(1, "t4", memory=memory, hollow=True):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            program()
        return ad.explain(caught.value)


def trained(batch, width=1024, layers=8, optimizer=torch.optim.Adam):
    network = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
    )
    network.cuda()
    step = optimizer(network.parameters())
    for _ in range(2):
        network(torch.ones(batch, width, device="cuda")).sum().backward()
        step.step()


def test_it_says_what_holds_the_memory_and_bounds_the_batch(monkeypatch, tmp_path):
    program = tmp_path / "train.py"
    program.write_text('parser.add_argument("-b", "--batch_size", type=int)')
    monkeypatch.setattr(sys, "argv", [str(program), "--lr", "0.1 or so"])
    text = explained(lambda: trained(8000), "300MiB")
    assert "cuda:0 has 300.0 MiB, of which" in text
    assert "It holds: parameters 32.0 MiB, activations and others" in text
    bound = int(
        text.split("A batch of 8000 does not fit; the largest that does is at most ")[1].split(".")[
            0
        ]
    )
    assert "anydevice plan --gpu t4 --batch-arg=--batch_size" in text
    assert f"{program} --lr '0.1 or so'" in text
    gc.collect()
    largest = ad.plan(
        lambda batch=16: trained(batch), "t4", steps=2, batch_arg="batch", context=MIB
    )
    fits = largest["t4"].largest.batch * 300 * MIB / largest["t4"].run.card.memory
    assert fits < bound < 8000


def test_a_smaller_batch_is_no_advice_where_the_states_fill_the_gpu():
    text = explained(lambda: trained(8, layers=16), "240MiB")
    assert "gradients 64.1 MiB, the optimizer's state" in text
    assert "an optimizer with less state, lower precision, or several GPUs" in text
    assert "at most" not in text


def test_one_tensor_that_is_too_large():
    text = explained(lambda: torch.empty(1 << 36, device="cuda"), "1GiB")
    assert "cuda:0 has 1.0 GiB, of which" in text
    assert "and this needs 256.0 GiB." in text
    assert "anydevice.plan(train, batch_arg=…)" in text  # pytest is no program to plan
    assert "It holds" not in text
    assert "at most" not in text
