"""Predicted time: what a step asks of a card, and how long a simulated card takes over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import anydevice as ad
from anydevice.devices.catalogue import card, cards
from anydevice.errors import UsageError
from anydevice.plan.time.predict import filled, kernel_time, predict
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.recorder import WorkRecorder
from anydevice.plan.time.work import Entry, HostTime, Op, Product, Transfer, Wait, Work
from anydevice.virtual.events import HOST

from ..virtual import networks

H100 = card("h100")
RATES = Rates(H100, measured={})
MIB = 1 << 20


@pytest.fixture(autouse=True)
def hollow():
    with ad.virtual_gpus(2, "h100", hollow=True, memory="512GiB"):
        yield


def recorded(step: Callable[[], object], before: int = 1) -> Work:
    """The work of one step, after others."""
    for _ in range(before):
        step()
    with WorkRecorder() as recorder:
        step()
        recorder.mark_step()
    return recorder.step()


def training(
    network: nn.Module, inputs: torch.Tensor, precision: torch.dtype | None = None, **options: bool
) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.Adam(network.parameters(), **options)

    def step() -> torch.Tensor:
        with torch.autocast("cuda", precision, enabled=precision is not None):
            loss = network(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def op(**given: object) -> Op:
    plain = Op("add", 0, 0, "float32", (), 0.0, 1, False, 0)
    return replace(plain, **given)  # type: ignore[arg-type]


def seconds(*entries: Entry, **options: bool) -> float:
    return predict(Work(list(entries)), H100, measured={}, **options).seconds


# ---- what is recorded ----


@pytest.mark.parametrize("make", ["vgg16", "resnet50"])
def test_the_products_have_the_flops_that_pytorchs_own_counter_finds(make: str) -> None:
    with torch.device("cuda"):
        step = training(getattr(networks, make)(), torch.rand(4, 3, 224, 224))
    work = recorded(step)
    with FlopCounterMode(display=False) as counter:
        step()
    assert work.flops == counter.get_total_flops()


def test_a_grouped_convolutions_gradient_costs_as_much_as_the_convolution() -> None:
    with torch.device("cuda"):
        network, x = nn.Conv2d(32, 32, 3, groups=32), torch.rand(4, 32, 20, 20, requires_grad=True)
    work = recorded(lambda: network(x).sum().backward())
    assert work.flops == 3 * 2 * 4 * 18 * 18 * 9 * 32  # forward, input's and weights' gradient


def test_causal_attention_computes_half_of_the_products() -> None:
    qkv = torch.rand(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16)
    whole = recorded(lambda: F.scaled_dot_product_attention(qkv, qkv, qkv))
    causal = recorded(lambda: F.scaled_dot_product_attention(qkv, qkv, qkv, is_causal=True))
    assert causal.flops == whole.flops / 2 > 0


def test_bytes_are_those_read_and_written() -> None:
    x, y = torch.rand(1000, 250, device="cuda"), torch.rand(250, device="cuda")
    tensor = 1_000_000

    def bytes_of(step: Callable[[], object]) -> list[float]:
        return [op.bytes for op in recorded(step).ops if op.kernels]

    assert bytes_of(lambda: x + 1) == [2 * tensor]
    assert bytes_of(lambda: x.add_(1)) == [2 * tensor]
    assert bytes_of(lambda: x.zero_()) == [tensor]
    assert bytes_of(lambda: x + y) == [2 * tensor + 1000]  # an expanded tensor is read once
    assert bytes_of(lambda: x.view(250, 1000).t()[0]) == []
    assert bytes_of(lambda: x.sum()) == [tensor + 4]


def test_channels_last_stays_so_and_is_not_converted() -> None:
    network = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.Conv2d(32, 8, 1)).cuda()
    images = torch.rand(2, 16, 8, 8, device="cuda")
    converted = [op.layout for op in recorded(training(network, images)).ops if op.products]
    assert all(size > 0 for size in converted)
    assert len(converted) == 4
    network = network.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
    kept = recorded(training(network, images)).ops
    forward = [op.layout for op in kept if op.products and not op.backward]
    assert forward == [0.0, 0.0]
    assert network(images).is_contiguous(memory_format=torch.channels_last)
    assert network.double()(images.double()).is_contiguous()


def test_a_foreach_optimizer_launches_few_kernels_and_a_loop_many() -> None:
    with torch.device("cuda"):
        network, x = networks.resnet50(), torch.rand(1, 3, 64, 64)
    few = sum(op.kernels for op in recorded(training(network, x)).ops)
    fused = sum(op.kernels for op in recorded(training(network, x, fused=True)).ops)
    many = sum(op.kernels for op in recorded(training(network, x, foreach=False)).ops)
    assert fused < few < many - 1000


def test_transfers_and_waits_are_where_the_program_has_them() -> None:
    pinned, pageable = torch.rand(1000).pin_memory(), torch.rand(500)

    def step() -> None:
        here = pinned.to("cuda", non_blocking=True)
        there = pageable.to("cuda")
        here.to("cuda:1")
        (here.sum() + there.sum()).item()
        torch.cuda.synchronize()

    moved = [e for e in recorded(step) if isinstance(e, Transfer | Wait)]
    kinds = [(e.bytes, e.source, e.destination, e.blocking) for e in moved[:-1]]  # type: ignore[union-attr]
    expected = [(4000, HOST, 0, False), (2000, HOST, 0, True), (4000, 0, 1, False)]
    assert kinds == [*expected, (4, 0, HOST, True)]
    assert moved[-1] == Wait(0, "cudaDeviceSynchronize")


def test_a_step_that_was_not_recorded_is_asked_for_in_vain() -> None:
    with WorkRecorder() as recorder:
        recorder.mark_step()
    with pytest.raises(UsageError, match="expected one of 1 recorded steps, got 1"):
        recorder.step(1)


def test_time_spent_on_loading_is_data_and_the_ops_inside_are_not_counted_again() -> None:
    with WorkRecorder() as recorder:
        with recorder.loading():
            torch.rand(100, 100)
        recorder.mark_step()
    assert [(type(e), e.name) for e in recorder.step()] == [(HostTime, "data")]  # type: ignore[union-attr]


# ---- the two queues ----


def test_small_ops_take_as_long_as_the_host_takes_to_launch_them() -> None:
    found = predict(Work([op()] * 100), H100, measured={})
    assert found.seconds == pytest.approx(100 * RATES["host_op"])
    assert found.waits_for_launches > 0.5


def test_large_ops_take_as_long_as_the_card_and_the_host_runs_ahead() -> None:
    large = op(bytes=1e9)
    found = predict(Work([large] * 100), H100, measured={})
    assert found.seconds == pytest.approx(100 * kernel_time(large, RATES))
    assert found.waits_for_launches == pytest.approx(0)


def test_waiting_for_the_card_ends_the_overlap() -> None:
    entries = [op(bytes=2e7)] * 10
    waits = [entry for each in entries for entry in (each, Wait(0, "cudaDeviceSynchronize"))]
    each = RATES["host_op"] + kernel_time(entries[0], RATES) + RATES["host_wait"]
    assert seconds(*waits) == pytest.approx(10 * each)
    assert seconds(*waits) > seconds(*entries)


def test_two_streams_run_at_a_time_unless_one_needs_the_others_result() -> None:
    first = op(bytes=1e9, stream=0, writes=(1,))
    apart, after = replace(first, stream=3, writes=(2,)), replace(first, stream=3, reads=(1,))
    one = kernel_time(first, RATES)
    assert seconds(first, apart) == pytest.approx(one, rel=0.01)
    assert seconds(first, after, synchronised=True) == pytest.approx(2 * one, rel=0.05)


def test_two_gpus_wait_for_what_passes_between_them() -> None:
    first = op(bytes=1e9, writes=(1,))
    over = Transfer(100 * MIB, 0, 1, False, False, reads=(1,), writes=(2,))
    then = op(bytes=1e9, device=1, reads=(2,))
    passing = 100 * MIB / (RATES["nvlink"] * RATES["between_gpus"])
    whole = 2 * kernel_time(first, RATES) + passing
    assert seconds(first, over, then, synchronised=True) == pytest.approx(whole, rel=0.05)


def test_a_pinned_copy_is_hidden_behind_the_step_and_a_pageable_one_is_waited_for() -> None:
    busy = [op(bytes=3e9, writes=(1,))] * 10
    pinned = Transfer(MIB, HOST, 0, True, False, stream=3)
    pageable = Transfer(200 * MIB, HOST, 0, False, True)
    without = seconds(*busy)
    assert seconds(pinned, *busy) == pytest.approx(without, rel=0.01)
    found = predict(Work([pageable, *busy]), H100, measured={})
    assert found.seconds > without + 200 * MIB / H100.link
    assert found.waits_for_transfers > 0.2


def test_data_that_is_slow_shows_as_a_wait_for_data() -> None:
    work = Work([op()] * 10)
    found = predict(work, H100, samples=32, data_seconds=0.1, measured={})
    assert found.seconds == pytest.approx(0.1 + 10 * RATES["host_op"])
    assert found.waits_for_data > 0.9
    assert found.samples_per_second == pytest.approx(32 / found.seconds)
    assert "waiting for data" in found.sentence()


# ---- cards ----


def product(n: int, unit: str = "bfloat16") -> Op:
    return op(unit=unit, products=(Product(1, n, n, n),), bytes=6.0 * n * n)


def test_a_large_product_reaches_the_share_of_the_peak_that_was_measured() -> None:
    rate = 2 * 8192**3 / kernel_time(product(8192), RATES)
    assert 0.65 * 989e12 < rate < 0.81 * 989e12


def test_a_small_product_fills_a_part_of_the_card() -> None:
    assert filled(Product(1, 64, 64, 64), 132) < 0.02
    assert filled(Product(1, 8192, 8192, 8192), 132) > 0.9
    one_more = Product(1, 132 * 256, 129, 4096)  # a second wave for the one column
    assert filled(one_more, 132) < filled(replace(one_more, n=128), 132)


def test_odd_sizes_cost_tensor_cores_more() -> None:
    odd = replace(product(4096), aligned=False)
    assert kernel_time(odd, RATES) > 1.5 * kernel_time(product(4096), RATES)


def test_half_precision_is_quicker_where_there_are_units_for_it() -> None:
    def gain(kind: str) -> float:
        rates = Rates(card(kind), measured={})
        return kernel_time(product(8192, "float32"), rates) / kernel_time(product(8192), rates)

    assert gain("h100") > 10
    assert gain("titan-x") == pytest.approx(1, rel=0.01)


def test_every_known_card_has_a_prediction_with_its_value_inside_the_range() -> None:
    with torch.device("cuda"):
        work = recorded(training(networks.alexnet(), torch.rand(16, 3, 224, 224)))
    found = {kind: predict(work, known, measured={}) for kind, known in cards().items()}
    assert all(0 < each.low < each.seconds < each.high for each in found.values())
    assert found["h100"].seconds < found["a100-80gb"].seconds < found["t4"].seconds


# The milliseconds that u39kun/deep-learning-benchmark publishes for 16 images, forward and
# backward; benchmarks/step_time.py has more of them, and says how far off each is.
@pytest.mark.parametrize(
    ("kind", "make", "published"),
    [
        ("v100-16gb", networks.vgg16, 83.5),
        ("gtx-1080-ti", networks.vgg16, 131.9),
        ("rtx-2080-ti", networks.vgg16, 95.5),
    ],
)
def test_a_published_time_of_a_real_card_is_within_the_predicted_range(
    kind: str, make: Callable[[], nn.Module], published: float
) -> None:
    with torch.device("cuda"):
        network, images = make(), torch.rand(16, 3, 224, 224, requires_grad=True)
    work = recorded(lambda: network(images).sum().backward())
    found = predict(work, card(kind), synchronised=True, measured={})
    assert found.low * 1e3 < published < found.high * 1e3
    assert 0.7 < found.seconds * 1e3 / published < 1.4
