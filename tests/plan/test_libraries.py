"""What a program around its network does: detection, linear algebra, processes."""

import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.library import Library
from torch.multiprocessing import Process, SimpleQueue

from anydevice import system
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.program import Program
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.planning import alone


def planned(train: object) -> HollowRun:
    return HollowGPUs("t4", steps=2).run(train, "train")  # type: ignore[arg-type]


def steps_of(network: nn.Module) -> Iterator[Tensor]:
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    while True:
        optimizer.zero_grad()
        loss = network(torch.rand(8, 4, device="cuda"))
        yield loss
        loss.sum().backward()
        optimizer.step()


def vision() -> Library:
    """As torchvision registers its ops: the kernels for CUDA need a card."""
    library = Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("roi_align(Tensor input, Tensor rois, int size) -> Tensor")

    def needs_a_card(*arguments: object) -> Tensor:
        raise RuntimeError("CUDA driver version is insufficient")

    def shape(features: Tensor, boxes: Tensor, size: int) -> Tensor:
        return features.new_empty(len(boxes), features.size(1), size, size)

    for name in ("nms", "roi_align"):
        library.impl(name, needs_a_card, "CUDA")
    library.impl("roi_align", shape, "Meta")
    return library


def detect() -> None:
    library = vision()
    boxes, features = torch.rand(100, 4).cuda(), torch.rand(1, 16, 32, 32, device="cuda")
    wrong = boxes[:, 2:] <= boxes[:, :2]
    for _ in steps_of(nn.Linear(4, 4).cuda()):
        if wrong.any():
            first = torch.where(wrong.any(dim=1))[0][0]
            torch._assert(False, f"a box has no area: {boxes[first].tolist()}")
        kept = torch.ops.torchvision.nms(boxes, boxes[:, 0], 0.5)
        assert kept.shape == (50,)
        found = torch.ops.torchvision.roi_align(features, boxes[kept], 7)
        assert found.shape == (50, 16, 7, 7)
    del library


def test_torchvisions_ops_have_their_shapes() -> None:
    run = planned(detect)
    assert run.steps == 2
    assert any("kept by nms()" in note for note in run.notes)
    assert run.work
    assert "roi_align" in [op.name for op in run.work.ops]


def solve() -> None:
    x, y = torch.rand(8, 4).cuda(), torch.rand(8, 4).cuda()
    assert torch.equal(x, x.view(8, 4))
    assert not torch.equal(x, x[:1])
    for _ in steps_of(nn.Linear(4, 4).cuda()):
        if not torch.allclose(x, y):
            raise ValueError("expected close values")
        _, info = torch.linalg.cholesky_ex(torch.rand(3, 4, 4, device="cuda"))
        assert not info.any().item()
        assert info.cpu().count_nonzero() == 0


def test_comparisons_may_be_true_and_matrices_are_regular() -> None:
    run = planned(solve)
    assert run.steps == 2
    assert any("test_libraries.py" in note and "pass" in note for note in run.notes)


def train_together(network: nn.Module) -> None:
    for loss in steps_of(network):
        print(loss.shape)


def evaluate(network: nn.Module, answers: object) -> None:
    while True:
        network(torch.rand(8, 4, device="cuda"))


def in_processes(target: Callable[..., None], *more: object) -> None:
    network = nn.Linear(4, 4).cuda()
    network.share_memory()
    processes = [Process(target=target, args=(network, *more)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def test_processes_that_train_on_one_gpu_are_planned_as_one_of_them() -> None:
    run = HollowGPUs("t4", steps=2, around=alone).run(partial(in_processes, train_together), "f")
    assert (run.steps, run.unit) == (2, "step")
    assert any("in several processes on the GPU" in note for note in run.notes)


@pytest.mark.skipif(not system.LINUX, reason="a queue is only inherited, not sent to a process")
def test_a_process_that_does_something_else_with_a_gpu_is_an_error() -> None:
    gpus = HollowGPUs("t4", steps=2, around=alone)
    with pytest.raises(CannotPlanError, match=r"test_libraries.py:\d+, which gives what is on a"):
        gpus.run(partial(in_processes, evaluate, SimpleQueue()), "train")


def test_a_loop_on_what_float_reads_continues_and_the_answer_says_so() -> None:
    path = Path(__file__).parent / "programs" / "until_no_change.py"
    run = HollowGPUs("t4").run(Program((str(path),)), path.name)
    assert (run.steps, run.unit) == (3, "step")
    assert any("float() reads at until_no_change.py:15 goes down" in note for note in run.notes)


def read_copies() -> None:
    for loss in steps_of(nn.Linear(4, 4).cuda()):
        copied, known = loss.detach().cpu(), torch.arange(4).cuda().cpu()
        assert f"{copied[0, 1].item():.3f} {known[3].item()}" == "? 3"
        assert str(copied.tolist()[0][0]) == "?"


def test_a_number_read_from_a_copy_on_the_host_is_unknown_too() -> None:
    assert planned(read_copies).steps == 2


def once() -> None:
    loss = next(steps_of(nn.Linear(4, 4).cuda())).sum()
    loss.backward()
    torch.optim.SGD([torch.ones(3, device="cuda", requires_grad=True)]).step()
    if float(loss) < 1:
        return


def test_a_program_that_may_have_ended_early_for_a_zero_says_so() -> None:
    run = planned(once)
    assert run.steps == 1
    assert any("float() reads zero at test_libraries.py" in note for note in run.notes)


SOLVER = """
def turns_of(error):
    turns = 0
    while error > 1e-3:
        turns += 1
        error = error / 2
    return turns
"""


def iterate(file: Path) -> None:
    library = runpy.run_path(str(file))
    for loss in steps_of(nn.Linear(4, 4).cuda()):
        assert [library["turns_of"](loss.detach().sum()) for _ in range(3)] == [1, 1, 1]


def test_a_loop_in_a_library_takes_one_turn_each_time(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "solver.py"
    file.parent.mkdir()
    file.write_text(SOLVER)
    assert planned(partial(iterate, file)).steps == 2


def draw() -> None:
    from torch.utils.tensorboard import SummaryWriter

    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Flatten(), nn.LazyLinear(1)).cuda()
    x = torch.rand(2, 1, 4, 4, device="cuda")
    network(x)
    SummaryWriter("runs").add_graph(network, x)
    for _ in range(2):
        network(x).sum().backward()
        torch.optim.SGD(network.parameters(), 0.1).step()


@pytest.mark.long
def test_a_network_that_tensorboard_draws_is_planned() -> None:
    assert planned(draw).unit == "step"
