"""What cannot be planned: one sentence with the line of the program, and exit code 2."""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import anydevice as ad
from anydevice import UsageError
from anydevice.plan.answer import Plan
from anydevice.plan.command import parse
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.plan.hollow.program import Program
from anydevice.plan.planning import plan

from ..forked import python

START = """import torch
network = torch.nn.Linear(3, 3).to("cuda")
optimizer = torch.optim.SGD(network.parameters(), 0.1)
loss = network(torch.ones(2, 3, device="cuda")).sum()
"""
TRITON = """import triton

@triton.jit
def add_one(x):
    triton.language.store(x, triton.language.load(x) + 1)
add_one[(1,)](network.weight)
"""
STEPS = """for _ in range(9):
    loss = network(torch.ones(2, 3, device="cuda")).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def planned(folder: Path, program: str, **options: Any) -> Plan:
    """As the command plans it, in this process, where torch is loaded."""
    path = folder / "train.py"
    path.write_text(program)
    return plan(Program((str(path),)), "t4", **options)


def refused(folder: Path, program: str, **options: Any) -> CannotPlanError:
    with pytest.raises(CannotPlanError) as error:
        planned(folder, program, **options)
    return error.value


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "anydevice", "plan", *words, cwd=folder)


CASES = {
    "no GPU": ("print(1)\n", "train.py, which ended without any work on a GPU"),
    "all on the CPU": (
        "import torch\ntorch.nn.Linear(2, 2)(torch.rand(3, 2)).sum().backward()\n",
        "got train.py, which does all its work on the CPU",
    ),
    "branches on item()": (
        START + "if loss.item() < 1:\n    network.double()\n" + STEPS,
        "got train.py:5, which branches on what it read from the GPU",
    ),
    "branches on a tensor": (
        START + "if loss > 1:\n    loss = loss * 2\n" + STEPS,
        "got train.py:5, which branches on what it read from the GPU",
    ),
    "branches on a sum of items": (
        START + "total = 0.0 + loss.item() / 2\nif total: network.double()\n" + STEPS,
        "got train.py:6, which branches",
    ),
    "branches on what a function returns": (
        START + "def small(x):\n    return bool(x < 1)\nif small(loss): network.double()\n" + STEPS,
        "got train.py:7, which branches",
    ),
    "a size by value": (
        START + "torch.bincount(torch.randint(9, (3,), device='cuda'))\n" + STEPS,
        "train.py:5: a hollow GPU has shapes but no values, and aten::bincount needs them",
    ),
    "a kernel in Triton": (
        START + TRITON,  # with Triton installed, it is planned
        "got train.py:5, which needs code for a GPU",
    ),
    "an op without a CUDA kernel": (
        'import torch\ntorch.library.define("mine::op", "(Tensor x) -> Tensor")\n'
        'torch.library.impl("mine::op", "cpu")(lambda x: x)\n'
        'torch.ops.mine.op(torch.ones(3, device="cuda"))\n',
        "got train.py:4, which needs code for a GPU (mine::op)",
    ),
    "a kernel in CUDA C++": (
        START + "torch.cuda._compile_kernel('__global__ void f(float*x){}', 'f')\n",
        "got train.py:5, which needs code for a GPU (a custom CUDA kernel)",
    ),
    "trains on the CPU": (
        'import torch\nw = torch.ones(3, requires_grad=True)\ns = torch.optim.SGD([w])\ns.step()\n',
        "got train.py:4, which steps an optimizer of parameters on the CPU",
    ),
    "fails": (START + "network(loss)\n", "got train.py:5, which failed with RuntimeError"),
    "ends itself": (START + "exit(3)\n", "got train.py:5, which ended with exit code 3"),
    "kills itself": (
        START + "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "ended with SIGKILL: the system may",
    ),
}  # fmt: skip


if find_spec("triton"):
    del CASES["a kernel in Triton"]


@pytest.mark.parametrize("case", CASES)
def test_is_refused_in_one_sentence_with_its_line(case: str, tmp_path: Path) -> None:
    program, sentence = CASES[case]
    error = refused(tmp_path, program)
    assert str(error).startswith("expected ")
    assert sentence in str(error)
    assert len(str(error).splitlines()) == 1
    assert ("Traceback" in error.details) == (case == "fails")
    assert "anydevice/plan" not in error.details


def test_a_refusal_is_exit_code_2_after_what_the_program_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    done = command(tmp_path, "--json", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    *_, hello, sentence = done.stderr.splitlines()
    assert hello == "hello"
    assert sentence.startswith("anydevice: expected a program that trains or runs a network")


def test_a_batch_argument_that_the_program_does_not_know(tmp_path: Path) -> None:
    options = "import argparse\nargparse.ArgumentParser().parse_args()\n"
    error = refused(tmp_path, options + START + STEPS, batch_arg="--batsh")
    assert "unrecognized arguments: --batsh" in error.details
    assert "got '--batsh': with 4 for it, the program exited at train.py:2" in str(error)


def test_a_batch_argument_that_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got a program that does the same with 2 and 4"):
        planned(tmp_path, START + STEPS, batch_arg="batch")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--gpu"], "expected a value after --gpu, got none"),
        (["--steps", "0", "x.py"], "expected a number of steps, from 1 on, after --steps, got '0'"),
        (["--gpus", "t4", "x.py"], "expected a number of gpus, from 1 on, after --gpus, got 't4'"),
        (["--gpu", "t5", "missing.py"], "expected a GPU in the catalogue, got 't5'"),
        (["--network", "x", "missing.py"], "expected a network in the catalogue or a .toml file"),
        (["--gpu", "t4", "--", "missing.py"], "got missing.py, which does not exist"),
        (["--batch-arg", "--n", "missing.py"], "got missing.py, which does not exist"),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse(words)


def test_a_gpu_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got 't5': did you mean t4"):
        ad.plan(print, gpus="t5")  # type: ignore[operator]


@pytest.mark.parametrize(
    "read",
    [
        "print(loss.item(), f'{loss.item():.3f}', round(loss.item(), 2))",
        "best = min(best, loss.item())",
        "total = total + loss.item() / 3; sorted([total, 2.0])",
        "n = int(loss.item()); torch.zeros(n)",
        "import json; json.dumps([loss.item(), (loss > 0).item()])",
        "torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0, error_if_nonfinite=True)",
        "scheduler.step(loss.item())",
    ],
)
def test_what_is_read_may_be_printed_and_computed_with(read: str, tmp_path: Path) -> None:
    made = "best, total = 9.0, 0.0\n"
    made += "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\n"
    assert planned(tmp_path, START + made + STEPS + f"    {read}\n").fits


def test_a_check_passes_whose_truth_a_function_returns(tmp_path: Path) -> None:
    ask = "def positive(x):\n    return bool((x > 0).all())\n"
    check = "if not positive(loss):\n    raise ValueError\n"
    assert planned(tmp_path, START + ask + check + STEPS).fits


def test_branches_may_be_taken_for_zero(tmp_path: Path) -> None:
    program = START + "if loss.item() > 1:\n    network.double()\n" + STEPS
    assert planned(tmp_path, program, assume_zeros=True).fits


def test_a_function_is_refused_with_the_same_errors() -> None:
    def without_steps() -> None:
        print("no GPU")

    with pytest.raises(UsageError, match=r"got without_steps, which ended without any work on"):
        ad.plan(without_steps)  # type: ignore[operator]
    with pytest.raises(UsageError, match="expected a parameter of without_steps as batch_arg"):
        ad.plan(without_steps, batch_arg="batch")  # type: ignore[operator]
