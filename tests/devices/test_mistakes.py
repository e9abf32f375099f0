"""Mistakes around devices that are no mismatch: each is made for real, and read by `explain`."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anydevice as ad

DATA = torch.ones(4, 3)


@pytest.fixture
def virtual_gpu():
    with ad.virtual_gpus(1):
        yield


def says(mistake, *parts):
    with pytest.raises((RuntimeError, TypeError, NotImplementedError)) as caught:
        mistake()
    text = ad.explain(caught.value)
    assert text.startswith(str(caught.value))
    assert text.count("anydevice: ") == 1
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    ("name", "meant"), [("gpu", '"cuda"'), ("nvidia", '"cuda"'), ("metal", '"mps"')]
)
def test_a_device_by_another_name(name, meant):
    says(lambda: DATA.to(name), f'no device "{name}"', meant, "Fix: device = anydevice.try_gpu()")


def test_a_network_of_another_dtype():
    network, x = nn.Linear(3, 2).half(), DATA
    says(
        lambda: network(x),
        "network is of torch.float16, x of torch.float32",
        "x = x.to(torch.float16)",
    )


def test_two_tensors_of_different_dtypes():
    out, h = torch.zeros(3), torch.ones(3).half()
    says(
        lambda: out.index_add_(0, torch.arange(3), h),
        "out is of torch.float32, h of torch.float16",
        "Fix: h = h.to(torch.float32)",
    )


def test_operands_without_names():
    says(
        lambda: nn.functional.linear(DATA + 0, DATA.half() + 0),
        "two dtypes met",
        "Fix: convert one with .to(other.dtype)",
    )


def test_a_sigmoid_before_the_loss_under_autocast(virtual_gpu):
    def mistake():
        p = torch.sigmoid(DATA.cuda() @ torch.ones(3, 1, device="cuda"))
        with torch.autocast("cuda"):
            nn.functional.binary_cross_entropy(p, torch.ones_like(p))

    says(mistake, "Fix: leave the sigmoid out, and use nn.BCEWithLogitsLoss()")


def test_a_generator_of_the_cpu(virtual_gpu):
    g = torch.Generator()
    says(
        lambda: torch.randn(3, device="cuda", generator=g),
        "g is a generator of cpu, and the numbers are drawn on cuda",
        'Fix: g = torch.Generator(device="cuda")',
    )


def test_pinning_what_is_on_the_gpu(virtual_gpu):
    loader = DataLoader(TensorDataset(DATA.cuda()), pin_memory=True)
    says(lambda: next(iter(loader)), "on a GPU already", "Fix: leave pin_memory=True out")


def test_a_dataset_on_the_gpu_with_workers(virtual_gpu):
    loader = DataLoader(TensorDataset(DATA.cuda()), num_workers=1)
    says(lambda: next(iter(loader)), "a DataLoader's worker", "Fix: keep the dataset on the CPU")


def test_a_gradient_on_the_cpu(virtual_gpu):
    y = 2 * torch.ones(3, device="cuda", requires_grad=True)
    says(lambda: y.backward(torch.ones(3)), "y is on cuda:0", "torch.ones(3, device=y.device)")


def test_a_function_of_numpy(virtual_gpu):
    pred = torch.ones(3, device="cuda")
    says(lambda: np.mean(pred), "pred is on cuda:0", "Fix: pred.cpu().numpy()")


def test_a_function_of_numpy_on_the_cpu_is_no_mistake_of_devices():
    with pytest.raises(TypeError) as caught:
        np.mean(DATA)
    assert ad.explain(caught.value) == str(caught.value)


def test_a_backend_that_is_not_here():
    says(lambda: torch.ones(3, device="mps"), "Fix: device = anydevice.try_gpu()")


def test_an_error_that_nothing_is_known_about_is_its_own_text():
    assert ad.explain(KeyError("x")) == "'x'"
