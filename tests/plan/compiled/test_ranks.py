"""A compiled program as one rank of several: DDP's buckets, FSDP2's blocks, tensor parallel."""

from collections import Counter
from pathlib import Path

import pytest

from anydevice.plan.cluster.answer import ClusterPlan
from anydevice.plan.cluster.command import Launched
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.planning import plan

pytest.importorskip("triton")
pytestmark = pytest.mark.long
SHARDED = str(Path(__file__).parent / "sharded.py")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYDEVICE_COMPILE", raising=False)


def rank(*arguments: str) -> tuple[HollowRun, Counter[str]]:
    """Rank 0 of four, and the kernels of its step that Inductor wrote, without their numbers."""
    answer = plan(Launched((SHARDED, *arguments), 1, 4, "torchrun"), "h100")
    assert isinstance(answer, ClusterPlan)
    run = answer.verdicts[0].roles[0].run
    assert run.work
    return run, Counter(op.name for op in run.work.ops if op.host == "compiled" and op.kernels)


def graphs(run: HollowRun) -> int:
    assert run.work
    return sum(op.name == "compiled graph" for op in run.work.ops)


def exchanged(run: HollowRun) -> Counter[str]:
    return Counter(each.name for each in run.exchanges)


def test_ddp_is_compiled_bucket_by_bucket() -> None:
    run, kernels = rank("ddp", "whole")
    reduced = exchanged(run)["all_reduce"]
    assert reduced >= 3
    assert graphs(run) == 2 * reduced  # forward and backward of each bucket
    assert any("silu" in name for name in kernels)


def test_the_blocks_of_fsdp2_are_compiled_and_gathered_as_without() -> None:
    run, kernels = rank("fsdp", "blocks")
    eager, _ = rank("fsdp", "not")
    assert graphs(run) == 4
    assert exchanged(run) == exchanged(eager)
    assert any("silu" in name for name in kernels)
    assert run.tensors < eager.tensors


def test_tensor_parallel_blocks_have_their_collectives_in_the_graph() -> None:
    run, kernels = rank("tp", "whole")
    assert graphs(run) == 2
    assert exchanged(run)["all_reduce"] >= 4
    assert any("silu" in name for name in kernels)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tp"])
def test_what_compiling_a_rank_changes_is_shown(kind: str) -> None:
    answer = plan(Launched((SHARDED, kind, "not"), 1, 2, "torchrun"), "h100", compile=True)
    compiling = answer.verdicts[0].compiling
    assert compiling
    assert not compiling.itself
    assert compiling.traced.graphs
    assert compiling.speedup
    assert compiling.speedup > 1
