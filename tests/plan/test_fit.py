"""Programs and functions planned for cards: what they take, whether they fit, the largest batch."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import anydevice as ad
from anydevice.plan.batch import Largest
from anydevice.plan.context import Context
from anydevice.plan.hollow.blocks import ACTIVATIONS
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.program import Program
from anydevice.plan.hollow.run import check_rounding
from anydevice.plan.planning import plan
from anydevice.tables import plain_text

from ..forked import python

TRAIN = """
import argparse
import pathlib
import torch
from torch import nn

here = pathlib.Path(__file__).parent
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
arguments = parser.parse_args()
network = nn.Sequential(nn.Linear(1000, 4000), nn.ReLU(), nn.Linear(4000, 10)).to("cuda")
optimizer = torch.optim.Adam(network.parameters())
try:
    for step in range(100):
        x = torch.rand(arguments.batch_size, 1000, device="cuda")
        loss = network(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, loss.item())
finally:
    torch.save(network.state_dict(), here / "weights.pt")
    (here / "finally").touch()
(here / "after").touch()
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def test_a_program_is_stopped_after_its_steps_and_leaves_no_file(train: Path) -> None:
    words = ("plan", "--json", "--gpu", "t4", "--steps", "2", "train.py")
    done = python("-m", "anydevice", *words, cwd=train)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)["gpus"][0]
    assert (answer["gpu"], answer["steps"], answer["samples"]) == ("t4", 2, 32)
    assert sorted(path.name for path in train.iterdir()) == ["train.py"]


@pytest.mark.long
def test_the_largest_batch_fits_and_the_next_does_not(train: Path) -> None:
    def program(*words: str) -> Program:
        return Program((str(train / "train.py"), *words))

    [searched] = plan(program("--batch-size=32"), "t4", batch_arg="--batch-size").verdicts
    assert searched.run.samples == 32
    assert searched.largest
    batch = searched.largest.batch
    assert plan(program("--batch-size", str(batch)), "t4").fits
    assert not plan(program(f"--batch-size={batch + 1}"), "t4").fits


def test_what_does_not_fit_is_exit_code_1_with_the_memory_that_it_needs(train: Path) -> None:
    words = ("plan", "--gpu", "t4", "train.py", "--batch-size", "1000000")
    done = python("-m", "anydevice", *words, cwd=train)
    assert done.returncode == 1
    assert " NO " in done.stdout
    need = plan(Program((str(train / "train.py"), "--batch-size=1000000")), "t4").verdicts[0].run
    assert need.tensors > need.card.memory


def test_what_holds_the_memory_adds_up_to_the_bytes_of_the_device(train: Path) -> None:
    [verdict] = plan(Program((str(train / "train.py"),)), "h100").verdicts
    held, run = verdict.holding(), verdict.run
    weights = 4 * (1000 * 4000 + 4000 + 4000 * 10 + 10)
    assert held["parameters"] == weights
    assert held["optimizer state"] == pytest.approx(2 * weights, abs=100)
    assert sum(held.values()) == run.device_bytes
    assert held["CUDA context"] == run.context.value


def network_on_cuda() -> nn.Module:
    return nn.Sequential(nn.Linear(100, 1000), nn.ReLU(), nn.Linear(1000, 10)).cuda()


def train_function(batch: int = 64) -> None:
    network = network_on_cuda()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    while True:
        x, y = torch.rand(batch, 100, device="cuda"), torch.zeros(batch, device="cuda").long()
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_a_function_is_planned_in_another_process() -> None:
    answer = ad.plan(train_function, gpus=["t4", "a100-80gb"])  # type: ignore[operator]
    assert answer.fits
    assert [verdict.run.gpu for verdict in answer.verdicts] == ["t4", "a100-80gb"]
    assert answer["a100-80gb"].run.tensors > 0
    assert not torch.cuda.is_available() or torch.version.cuda
    assert "parameters" in repr(answer)
    assert "<table" in answer._repr_html_()


def test_what_does_not_fit_takes_what_it_would_take_on_a_larger_gpu() -> None:
    def train() -> None:
        layers = [nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.ReLU()]
        network = nn.Sequential(*layers).cuda()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(3):
            x = torch.rand(4000, 2000, device="cuda")
            output = checkpoint(network, x, use_reentrant=False)
            optimizer.zero_grad()
            output.sum().backward()
            optimizer.step()

    gpus = HollowGPUs("t4")
    whole = gpus.run(train, "train")
    assert (whole.verdict, whole.margin) == ("yes", whole.card.memory - whole.device_bytes)
    for share in (0.5, 0.8, 0.95):
        context = Context.exactly(whole.card.memory - int(whole.reserved * share))
        broken_off = HollowGPUs("t4", context=context).run(train, "train")
        assert (broken_off.verdict, broken_off.fits) == ("no", False)
        assert broken_off.margin < 0
        for figure in ("allocated", "reserved", "tensors"):
            assert getattr(broken_off, figure) == getattr(whole, figure)
    unsure = Context(0, 0, whole.card.memory - int(whole.reserved * 0.95))
    may_fit = HollowGPUs("t4", context=unsure).run(train, "train")
    assert (may_fit.verdict, may_fit.fits, may_fit.reserved) == ("maybe", False, whole.reserved)
    whole.blocks = [block for block in whole.blocks if block.category != ACTIVATIONS]
    with pytest.raises(CannotPlanError, match="This is a bug in anydevice"):
        check_rounding(whole)


def test_activations_are_listed_by_module() -> None:
    answer = ad.plan(train_function, gpus="t4")  # type: ignore[operator]
    by_module = answer.verdicts[0].activations()
    assert by_module["0"] == by_module["1"] == 64 * 1000 * 4


def layers() -> None:
    with torch.device("cuda"):
        blocks = [nn.Sequential(nn.Linear(100, 100), nn.ReLU()) for _ in range(20)]
        network = nn.Sequential(nn.Sequential(*blocks))
        optimizer = torch.optim.SGD(network.parameters())
        while True:
            network(torch.zeros(10_000, 100)).sum().backward()
            optimizer.step()


def test_many_layers_that_are_alike_are_one_line_a_part() -> None:
    answer = plain_text(ad.plan(layers, gpus="t4"))  # type: ignore[operator]
    assert "0.*.1 (ReLU)" in answer
    assert answer.index("per step (") < answer.index("at the peak")  # the answer before its details
    assert "cuDNN" not in answer  # there is no convolution


def trial(samples: int = 64) -> ad.Trial:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64, 64), nn.ReLU(), nn.Linear(64, 2))
    images = torch.empty(samples, 1, 64, 64, dtype=torch.uint8)
    labels = torch.zeros(samples, dtype=torch.int64)
    return ad.Trial(network, "adam", "cross_entropy").with_generators((images, labels))


def test_the_largest_batch_of_a_trial_may_be_all_its_data() -> None:
    [verdict] = ad.plan(trial(1000), "t4", batch_arg="batch_size").verdicts  # type: ignore[operator]
    assert verdict.run.samples == 100  # with_generators() takes so many
    assert verdict.largest
    assert verdict.largest.all_data
    assert verdict.largest.batch == 1000


def test_a_trial_of_batches_names_no_batch_size() -> None:
    batches = trial().with_generators([(torch.ones(2, 1, 64, 64), torch.zeros(2).long())])
    for made, name in ((trial(), "batch"), (batches, "batch_size")):
        with pytest.raises(ad.UsageError, match="expected batch_size as the batch_arg of a trial"):
            ad.plan(made, "t4", batch_arg=name)  # type: ignore[operator]


def test_the_answer_can_be_read_at_80_columns(train: Path) -> None:
    answer = plan(Program((str(train / "train.py"),)), ["t4", "a100-80gb"])
    for verdict in answer.verdicts:
        verdict.largest = Largest(1_234_567, runs=9)
    lines = plain_text(answer, width=80).splitlines()
    rows = [line for line in lines if "1,234,567" in line]
    assert [row.split()[:2] for row in rows] == [["t4", "yes"], ["a100-80gb", "yes"]]
    assert all(row.split()[-1].replace(",", "").isdigit() for row in rows)  # samples a second
    assert max(map(len, lines)) <= 80


def train_a_step(*before: int, fraction: float = 1.0) -> None:
    """One step, after tensors of so many GiB that are freed again."""
    torch.cuda.set_per_process_memory_fraction(fraction)
    network = network_on_cuda()
    for size in before:
        torch.empty(size << 30, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    print(free >> 30, total >> 20)
    for _ in range(2):
        network(torch.rand(8, 100, device="cuda")).sum().backward()
        torch.optim.SGD(network.parameters(), 0.1).step()


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ({"before": (9,)}, "yes"),
        ({"before": (9, 10)}, "yes"),  # the first is returned before the second is taken
        ({"before": (9,), "fraction": 0.5}, "no"),
        ({"before": (9, 15)}, "no"),
    ],
)
def test_what_the_allocator_can_return_is_no_reason_not_to_fit(
    how: dict[str, Any], verdict: str, capfd: pytest.CaptureFixture[str]
) -> None:
    step = partial(train_a_step, *how["before"], fraction=how.get("fraction", 1.0))
    run = HollowGPUs("t4", shown=True).run(step, "train")
    assert run.verdict == verdict
    assert len(capfd.readouterr().err.splitlines()) == 1  # even if it runs again on a full card
    assert run.reserved >> 30 == {"yes": how["before"][-1], "no": sum(how["before"])}[verdict]


def test_a_program_sees_how_much_memory_is_free_on_the_card(
    capfd: pytest.CaptureFixture[str],
) -> None:
    HollowGPUs("t4", shown=True).run(lambda: train_a_step(9), "train")
    assert capfd.readouterr().err == "5 14912\n"
