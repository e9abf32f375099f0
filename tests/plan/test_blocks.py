"""Whose memory is whose, and which choices of CUDA's a plan follows."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import anydevice as ad
from anydevice.plan.answer import Verdict
from anydevice.plan.hollow.blocks import (
    BACKWARD,
    INPUTS,
    PARAMETERS,
    TEMPORARY,
    WORKSPACE,
    Block,
    peak,
)
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.run import HollowRun, hollow_run

MIB = 1 << 20
Made = Callable[[], nn.Module]


def block(start: int, end: int | None, size: int, category: str = "activations") -> Block:
    return Block(start, end, size, 0, category, "", "")


def test_the_peak_is_the_fullest_moment_and_what_there_is_then() -> None:
    first, second, third = block(0, 2, 10), block(1, 4, 5), block(3, None, 9)
    workspace = block(5, 6, 100, WORKSPACE)
    found = peak([first, second, third, workspace], without=(WORKSPACE,))
    assert (found.bytes, found.blocks) == (15, [first, second])
    assert peak([first, second, third, workspace]).blocks == [third, workspace]
    assert peak([]).bytes == 0


def run_of(
    network: Made,
    shape: tuple[int, ...],
    gpu: str = "a100-80gb",
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    dtype: torch.dtype = torch.float32,
) -> HollowRun:
    def train() -> None:
        model = network().to("cuda", dtype)
        steps = optimizer(model.parameters())
        while True:
            x = torch.rand(shape, device="cuda", dtype=dtype)
            steps.zero_grad()
            model(x).float().square().mean().backward()
            steps.step()

    run = isolated(lambda: hollow_run(train, gpu))
    assert run
    return run


def totals(run: HollowRun, category: str) -> Counter[str]:
    """Bytes that were taken for this in the last step, by module."""
    begin = run.step_marks[-2]
    found = Counter[str]()
    for each in run.blocks:
        if each.start >= begin and each.category == category:
            found[each.module] += each.bytes
    return found


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 1000), nn.Sequential(nn.ReLU(), nn.Linear(1000, 10)))


def test_each_block_is_of_the_module_that_made_it_in_backward_too() -> None:
    run = run_of(two_layers, (64, 100))
    assert totals(run, INPUTS) == {"": 64 * 100 * 4}
    assert totals(run, "activations")["0"] == totals(run, "activations")["1.0"] == 64 * 1000 * 4
    backward = totals(run, BACKWARD)
    assert backward["1.1"] == backward["1.0"] == 64 * 1000 * 4  # what each hands down
    assert totals(run, "gradients").total() == 4 * (100 * 1000 + 1000 + 1000 * 10 + 10)


def test_a_foreach_optimizer_needs_room_for_all_parameters_and_a_loop_for_one() -> None:
    def ten_layers() -> nn.Module:
        return nn.Sequential(*(nn.Linear(100, 100, bias=False) for _ in range(10)))

    def temporary(optimizer: Callable[..., torch.optim.Optimizer]) -> int:
        run = run_of(ten_layers, (1, 100), optimizer=optimizer)
        return peak([b for b in run.blocks if b.category == TEMPORARY]).bytes

    layer = 4 * 100 * 100
    assert temporary(torch.optim.Adam) >= 10 * layer
    assert temporary(lambda p: torch.optim.Adam(p, foreach=False)) <= 3 * layer
    assert temporary(lambda p: torch.optim.Adam(p, fused=True)) < layer


@pytest.mark.parametrize(
    ("gpu", "size"), [("t4", 8_519_680), ("a100-80gb", 8_519_680), ("h100", 32 * MIB)]
)
def test_cublas_has_a_workspace_for_forward_and_one_for_backward(gpu: str, size: int) -> None:
    run = run_of(two_layers, (64, 100), gpu)
    assert [b.bytes for b in run.blocks if b.category == WORKSPACE] == [size, size]


def test_what_the_user_asks_of_cublas_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    run = run_of(two_layers, (64, 100), "h100")
    assert {b.bytes for b in run.blocks if b.category == WORKSPACE} == {16 * 8 << 10}


def convolution(**options: object) -> Made:
    return lambda: nn.Conv2d(8, 16, 3, padding=1, **options)  # type: ignore[arg-type]


def test_a_convolution_on_tensor_cores_works_on_copies_of_its_operands() -> None:
    shape = (4, 8, 32, 32)
    operands = 4 * (4 * 8 * 32 * 32 + 16 * 8 * 9 + 4 * 16 * 32 * 32)
    assert run_of(convolution(), shape, "a100-80gb").cudnn == operands
    assert run_of(convolution(), shape, "a100-80gb", dtype=torch.bfloat16).cudnn == operands // 2
    assert run_of(convolution(), shape, "t4").cudnn == 0  # float32 has no tensor cores there
    assert run_of(convolution(groups=8), shape, "a100-80gb").cudnn == 0

    def channels_last() -> nn.Module:
        return convolution()().to(memory_format=torch.channels_last)

    assert run_of(channels_last, shape, "a100-80gb").cudnn == 0


def test_winograds_tiles_are_counted_where_cudnn_may_choose_them() -> None:
    def many_channels() -> nn.Module:
        return nn.Conv2d(256, 512, 3, padding=1)

    def timed(made: Made) -> Made:
        def make() -> nn.Module:
            torch.backends.cudnn.benchmark = True  # in the run's process alone
            return made()

        return make

    shape = (2, 256, 8, 8)
    assert run_of(many_channels, shape, "v100-16gb").cudnn == 0
    images, filters = 4 * 2 * (256 + 512) * 8 * 8, 4 * 256 * 512 * 9
    assert run_of(timed(many_channels), shape, "v100-16gb").cudnn == images * 36 // 16 + filters * 4
    assert run_of(timed(convolution()), (4, 8, 32, 32), "v100-16gb").cudnn == 0  # few channels
    assert run_of(timed(many_channels), shape, "v100-16gb", dtype=torch.float16).cudnn == (
        (images + filters) // 2
    )


def test_all_micro_batches_of_a_step_are_counted_and_a_moved_network_keeps_its_parameters() -> None:
    def train() -> None:
        network = nn.Sequential(nn.Linear(100, 200), nn.BatchNorm1d(200)).cuda()
        network[0].requires_grad_(False)
        optimizer = torch.optim.SGD(network[1].parameters(), lr=0.1)
        for _ in range(3):
            network.cpu().cuda()
            for _ in range(4):
                outputs = network(torch.rand(8, 100, device="cuda"))
                scaled = outputs * 2.0
                (scaled * scaled).sum().backward()
            optimizer.step()

    run = isolated(lambda: hollow_run(train, "t4"))
    assert (run.samples, run.step_samples) == (8, 32)
    moved = totals(run, PARAMETERS)
    assert moved[""] == 4 * (100 * 200 + 200) + 4 * 4 * 200 + 8
    outside = Verdict(run).activations()
    assert any(name.startswith("outside modules, test_blocks.py:") for name in outside)


def test_workspaces_are_never_counted_as_tensors() -> None:
    run = run_of(lambda: nn.Conv2d(64, 8, 3, padding=1), (4, 64, 320, 320), "a100-80gb")
    with_workspaces = peak(run.blocks)
    assert run.tensors < with_workspaces.bytes <= run.allocated
    held = sum(b.bytes for b in with_workspaces.blocks if b.category == WORKSPACE)
    assert held >= run.cudnn > run.tensors / 2
    assert run.device_bytes - run.reserved == run.context.value


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 3 * 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part[:, None] for part in self.qkv(x).split(64, -1))
        return F.scaled_dot_product_attention(q, k, v)


def test_attention_takes_the_kernel_of_the_card_and_the_dtype() -> None:
    length = 2048
    scores = length * length
    shape = (1, length, 64)
    flash = run_of(Attention, shape, "a100-80gb", dtype=torch.bfloat16)
    plain = run_of(Attention, shape, "t4", dtype=torch.bfloat16)  # no flash, no bfloat16 there
    assert flash.tensors < scores < plain.tensors


def test_dropout_keeps_a_mask_of_a_byte_for_each_number() -> None:
    run = run_of(lambda: nn.Sequential(nn.Linear(100, 1000), nn.Dropout()), (64, 100))
    assert totals(run, "activations")["1"] == 64 * 1000 * (4 + 1)


@pytest.mark.parametrize(
    ("loss", "kept", "more"),
    [
        (F.mse_loss, 1 << 20, 1 << 20),
        (F.smooth_l1_loss, 1 << 20, 1 << 20),
        (F.binary_cross_entropy, 1 << 20, 512),
        (F.huber_loss, 0, 0),
    ],
)
def test_losses_that_cuda_computes_for_each_element_keep_the_elements(
    loss: Callable[..., torch.Tensor], kept: int, more: int
) -> None:
    def run() -> tuple[int, int]:
        taken = []

        def compute() -> None:
            x, y = torch.rand(2, 1 << 18, device="cuda")
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            value = loss(x, y)
            assert value.shape == ()
            taken.append(torch.cuda.memory_allocated() - before)
            taken.append(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())

        hollow_run(compute, "t4")
        return taken[0], taken[1]

    left, during = isolated(run)
    assert (left, during) == (kept or 512, more)


@pytest.mark.parametrize("hollow", [False, True])
def test_what_is_left_of_earlier_gpus_is_not_the_programs(hollow: bool) -> None:
    def train() -> None:
        network = nn.Linear(512, 512).cuda()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(3):
            network(torch.ones(64, 512, device="cuda")).sum().backward()
            optimizer.step()

    alone = isolated(lambda: hollow_run(train, "t4"))
    with ad.virtual_gpus(1, "t4", hollow=hollow):
        left = torch.ones(3_000_000, device="cuda")
    beside = isolated(lambda: hollow_run(train, "t4"))
    assert left.nbytes > alone.tensors
    assert (beside.allocated, beside.requested) == (alone.allocated, alone.requested)
    assert beside.tensors == alone.tensors
