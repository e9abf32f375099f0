"""Several processes, each with a virtual GPU of its own, launched by torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from anydevice.virtual.process import environment

from ..forked import ranks
from .own_process import run

PROGRAMS = Path(__file__).with_name("distributed_programs")
ENABLING = ("hollow",)  # programs that call virtual.enable() themselves
# Not by torchrun, but in `make test-distributed`; what restarts always is.
FORKED = ("collectives", "groups", "training", "sharding", "hollow")
RANKS = int(os.environ.get("ANYDEVICE_TEST_RANKS", "2"))


def launch(program: str, folder: Path, *options: str) -> list[tuple[int, dict[str, str]]]:
    """For each rank, how many checks it made and the tracebacks of those that failed."""
    env = os.environ | {"REPORTS": str(folder), "OMP_NUM_THREADS": "1"}
    if program in FORKED and "ANYDEVICE_TEST_RANKS" not in os.environ:
        gpus = 0 if program in ENABLING else RANKS
        done = ranks(PROGRAMS / f"{program}.py", count=RANKS, gpus=gpus, env=env, timeout=300)
        return reported(done, folder)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    run = [] if program in ENABLING else ["-m", "anydevice", "run", "--gpus", str(RANKS)]
    done = subprocess.run(
        [sys.executable, *run, *torchrun, *options, str(PROGRAMS / f"{program}.py")],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return reported(done, folder)


def reported(
    done: subprocess.CompletedProcess[str], folder: Path
) -> list[tuple[int, dict[str, str]]]:
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize(
    "program",
    [
        "collectives",
        pytest.param("groups", marks=pytest.mark.long),
        "training",
        "sharding",
        "hollow",
    ],
)
def test_all_ranks_agree(program: str, tmp_path: Path) -> None:
    reports = launch(program, tmp_path)
    failures = [text for _, failed in reports for text in failed.values()]
    assert not failures, "\n".join(failures)
    assert all(checks > 0 for checks, _ in reports)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (["-m", "torch.distributed.run", "train.py"], {"PET_LOCAL_ADDR": "127.0.0.1"}),
        (["/usr/bin/torchrun", "train.py"], {"PET_LOCAL_ADDR": "127.0.0.1"}),
        (["train.py"], {}),
    ],
)
def test_ranks_meet_on_a_machine_whose_name_leads_nowhere(
    program: list[str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PET_LOCAL_ADDR", raising=False)
    monkeypatch.setattr("socket.getfqdn", lambda: "nowhere.invalid")
    assert environment.for_torchrun(program) == expected


@pytest.mark.long
def test_torchrun_starts_all_ranks_again_when_one_has_died(tmp_path: Path) -> None:
    reports = launch("restarting", tmp_path, "--max-restarts", "1")
    assert [attempt for attempt, _ in reports] == [1] * RANKS


def test_disabling_leaves_torch_distributed_as_it_was() -> None:
    is_cuda_build, before, during, after = run(
        """
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

def seen():
    owners = (dist, dist.distributed_c10d, c10d, c10d.Backend, c10d.ProcessGroup)
    return [dist.is_nccl_available(), *({n: id(v) for n, v in vars(o).items()} for o in owners)]

is_cuda_build, before = torch.version.cuda is not None, seen()
virtual.enable(2)
during = dist.is_nccl_available()
virtual.disable()
print(json.dumps([is_cuda_build, before[0], during, seen() == before]))
"""
    )
    assert (before, during, after) == (is_cuda_build, True, True)
