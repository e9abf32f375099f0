"""The backward graph is compiled by a child process; without one, the answer is the same."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anydevice import system
from anydevice.plan.hollow import compilations
from anydevice.plan.hollow.program import Program
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.planning import plan
from anydevice.virtual.compiled import ahead

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not system.LINUX, reason="no process is forked there")

PROGRAM = """
import torch
from torch import nn
from torch._dynamo.utils import counters
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
optimizer, compiled = torch.optim.SGD(model.parameters(), lr=0.1), torch.compile(model)
for _ in range(4):
    compiled(torch.rand(32, 64, device="cuda")).logsumexp(1).mean().backward()
    found = counters["inductor"]["fxgraph_cache_hit"]
    assert found == FOUND, f"{found} graphs were there already"
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs are worth a child, on a machine with one core too."""
    if not [*ahead.attributes()]:
        pytest.skip("this torch compiles both graphs in one process")
    monkeypatch.delenv("ANYDEVICE_COMPILE", raising=False)
    monkeypatch.setattr(ahead, "WORTH", 0)
    monkeypatch.setattr(ahead.system, "usable_cores", lambda: 2)


def planned(folder: Path, patched: pytest.MonkeyPatch, found: int) -> HollowRun:
    """Of a program that asserts how many graphs Inductor found, with nothing kept before."""
    kept = folder / f"kept-{found}"
    kept.mkdir()
    patched.setattr(compilations, "folder", lambda name: kept)
    program = folder / "train.py"
    program.write_text(PROGRAM.replace("FOUND", str(found)))
    return plan(Program((str(program),)), "h100").verdicts[0].run


def fails(parent: int) -> None:
    raise RuntimeError("the child fails")


def hangs(parent: int) -> None:
    system.end_with(parent)
    time.sleep(600)


@pytest.mark.parametrize("child", [fails, pytest.param(hangs, marks=pytest.mark.long)])
def test_without_the_child_the_answer_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, child: Callable[[int], None]
) -> None:
    helped = planned(tmp_path, monkeypatch, found=1)
    monkeypatch.setattr(ahead, "_prepare", child)
    alone = planned(tmp_path, monkeypatch, found=0)
    assert alone.work
    assert helped.work
    assert [op.name for op in helped.work.ops] == [op.name for op in alone.work.ops]
    assert helped.tensors == alone.tensors
