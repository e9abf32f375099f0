"""A network made on the host draws no weights that nobody looks at; what is looked at is right."""

import copy
import os
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from anydevice import system
from anydevice.plan.hollow import unfilled
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.hollow.run import hollow_run
from anydevice.virtual.compiled import ahead

SIZE = 2 * unfilled.LEAST + 3  # so that normal_() draws its last numbers again
Made = list[Tensor]


def made() -> Made:
    """Tensors that are filled with random numbers, and what is done to them afterwards."""
    torch.manual_seed(3)
    plain = torch.empty(SIZE).uniform_(-1, 1)
    scaled = torch.empty(SIZE, dtype=torch.float64).normal_().mul_(0.5).add_(1)
    layer = nn.Linear(256, 128)
    nn.init.normal_(layer.weight, std=0.02)
    with torch.no_grad():
        layer.weight[3].fill_(7)
    return [plain, scaled, layer.weight.data, copy.deepcopy(layer).to(torch.bfloat16).weight.data]


def by_an_op(tensors: Made) -> list[float]:
    return [float(tensor.double().sum()) for tensor in tensors]


def by_numpy(tensors: Made) -> list[float]:
    return [float(tensor.view(torch.int16).numpy().sum()) for tensor in tensors]


def in_another_thread(tensors: Made) -> list[float]:
    sums: list[float] = []
    thread = threading.Thread(target=lambda: sums.extend(by_an_op(tensors)))
    thread.start()
    thread.join()
    return sums


def how_many() -> int:
    """Tensors that are left as they are."""
    known = unfilled._before_forks[-1]._left.values()
    return sum(not each.storage.expired() for each in known)


def planned(look: Callable[[Made], list[float]]) -> tuple[list[float], list[float], int]:
    """What a planned program reads, its next random numbers, and how many tensors were left."""
    read: list[list[float]] = []
    left: list[int] = []

    def program() -> None:
        tensors = made()
        left.append(how_many())
        read.append(torch.rand(5).tolist())
        read.append(look(tensors))
        network = nn.Linear(256, 256).to("cuda")
        network(torch.zeros(2, 256, device="cuda")).sum().backward()
        torch.optim.SGD(network.parameters()).step()

    hollow_run(program, "t4", steps=1)
    return read[0], read[1], left[0]


@pytest.mark.parametrize("look", [by_an_op, by_numpy, in_another_thread])
def test_what_a_program_reads_is_what_it_would_be(look: Callable[[Made], list[float]]) -> None:
    expected = made()
    numbers = torch.rand(5).tolist()
    later, read, left = isolated(lambda: planned(look))
    assert left == len(expected), "they were drawn at once"
    assert (later, read) == (numbers, look(expected))


class Monitor(threading.Thread):
    """As the thread that a progress bar starts."""

    __module__ = "tqdm._monitor"


def a_progress_bar() -> None:
    monitor = Monitor()
    monitor.start()
    monitor.join()


def a_compiler() -> None:
    if not (child := ahead.fork()):
        os._exit(0)
    os.waitpid(child, 0)


def a_worker() -> None:
    if not (child := system.fork()):
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.skipif(not system.LINUX, reason="no process is forked there")
@pytest.mark.parametrize(
    ("happens", "all_left"),
    [(a_progress_bar, True), (a_compiler, True), (a_worker, False)],
)
def test_only_what_could_look_has_the_numbers_drawn(
    happens: Callable[[], None], all_left: bool
) -> None:
    def look(tensors: Made) -> list[float]:
        happens()
        return [how_many(), *by_an_op(tensors)]

    expected = made()
    _, read, left = isolated(lambda: planned(look))
    assert read == [left if all_left else 0, *by_an_op(expected)]
