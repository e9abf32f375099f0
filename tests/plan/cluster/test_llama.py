"""The toy Llama trains on virtual GPUs, and takes on each rank what its plan says, to the byte."""

import os
import re
from pathlib import Path

import pytest

from anydevice.plan.cluster.answer import ClusterPlan
from anydevice.plan.cluster.command import Launched
from anydevice.plan.planning import plan
from tests.forked import ranks

LLAMA = str(Path(__file__).parents[3] / "examples" / "llama3.py")
PEAK = re.compile(r"rank (\d+): peak memory ([\d,]+) bytes")
LOSS = re.compile(r"loss ([\d.]+)")

long = pytest.mark.long
WAYS = [
    pytest.param(1, "", id="one"),
    pytest.param(2, "", id="fsdp", marks=long),
    pytest.param(2, "--tp 2", id="tp", marks=long),
    pytest.param(2, "--pp 2", id="1F1B", marks=long),
    pytest.param(2, "--pp 2 --schedule Interleaved1F1B", id="interleaved", marks=long),
    pytest.param(2, "--pp 2 --schedule ZBVZeroBubble", id="zero-bubble", marks=long),
    pytest.param(2, "--checkpoint full", id="full", marks=long),
    pytest.param(2, "--checkpoint selective", id="selective", marks=long),
    pytest.param(4, "", id="fsdp-4", marks=long),
    pytest.param(4, "--replicate 2", id="hsdp", marks=long),
    pytest.param(4, "--tp 2", id="tp-fsdp", marks=long),
    pytest.param(4, "--pp 2", id="pp-fsdp", marks=long),
    pytest.param(4, "--tp 2 --pp 2", id="tp-pp", marks=long),
    pytest.param(2, "--cp 2", id="cp", marks=long),
    pytest.param(8, "--pp 2", id="pp-fsdp-8", marks=long),
    pytest.param(8, "--tp 2 --pp 2 --cp 2", id="tp-pp-cp-8", marks=long),
]


def by_values(count: int, words: list[str]) -> dict[int, int]:
    """The bytes at the peak of each rank, with real numbers and real processes."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = ranks(LLAMA, *words, count=count, gpus=count, env=env, timeout=400)
    assert done.returncode == 0, done.stderr
    return {int(rank): int(size.replace(",", "")) for rank, size in PEAK.findall(done.stdout)}


def by_plan(count: int, words: list[str]) -> dict[int, int]:
    """The same of the ranks that the plan played, without what cuBLAS would take."""
    answer = plan(Launched((LLAMA, *words), 1, count, "torchrun"), "h100")
    assert isinstance(answer, ClusterPlan)
    return {role.rank: role.run.tensors for role in answer["h100"].roles}


@pytest.mark.parametrize(("count", "words"), WAYS)
def test_values_and_plan_take_the_same_memory(count: int, words: str) -> None:
    arguments = [*words.split(), "--steps", "3"]
    planned, taken = by_plan(count, arguments), by_values(count, arguments)
    assert len(taken) == count
    for rank, size in taken.items():
        assert size == planned[max(role for role in planned if role <= rank)], rank


@long
@pytest.mark.parametrize("words", ["", "--cp 2", "--experts 4 --ep 2"])
def test_the_toy_learns_the_next_word(words: str) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = ranks(LLAMA, "--steps", "30", *words.split(), count=2, gpus=2, env=env, timeout=400)
    losses = [float(loss) for loss in LOSS.findall(done.stdout)]
    assert losses[0] > 4
    assert losses[-1] < 2.5
