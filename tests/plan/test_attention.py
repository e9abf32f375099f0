"""Which kernel attention takes: stated in the answer, and chosen by --sdpa."""

import json

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from anydevice.errors import UsageError
from anydevice.plan.planning import plan


def attend(dtype=torch.bfloat16, **options):
    weight = torch.nn.Linear(64, 64, device="cuda", dtype=dtype)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    while True:
        q = weight(torch.ones(2, 4, 256, 64, device="cuda", dtype=dtype))
        F.scaled_dot_product_attention(q, q, q, **options).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def attend_in_float32():
    attend(torch.float32)


def allow_efficient_alone():
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        attend()


def taken(function, gpu="h100", **options):
    answer = plan(function, gpu, steps=2, **options)
    notes = answer.verdicts[0].run.notes
    (note,) = [note for note in notes if "ttention" in note]
    [card] = json.loads(answer.to_json())["gpus"]
    return card["attention"], note


def test_by_default_pytorch_chooses_by_card():
    said = "Attention takes the cuDNN kernel (--sdpa chooses another)."
    assert taken(attend) == (["cudnn"], said)
    assert taken(attend, "a100-80gb")[0] == ["flash"]
    assert taken(attend, "t4")[0] == ["math"]


def test_a_chosen_kernel_moves_memory():
    flash, mathematics = (
        plan(attend, "h100", steps=2, sdpa=name).verdicts[0].run for name in ("flash", "math")
    )
    assert (flash.attention, mathematics.attention) == (["flash"], ["math"])
    scores = 2 * 4 * 256 * 256 * 2
    assert mathematics.tensors > flash.tensors + scores


def test_a_kernel_that_cannot_take_the_tensors_is_not_taken_and_it_is_said():
    kernels, note = taken(attend_in_float32, sdpa="flash")
    assert kernels == ["efficient"]
    assert "the flash one, which --sdpa asks for, does not take these tensors" in note


def test_a_program_that_allows_one_kernel_has_the_last_word():
    assert taken(allow_efficient_alone, sdpa="flash")[0] == ["efficient"]


def test_a_kernel_that_does_not_exist_is_a_sentence():
    with pytest.raises(UsageError, match=r"got 'flsh': did you mean flash\?"):
        plan(attend, sdpa="flsh")
