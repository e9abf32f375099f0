"""Processes that torchrun starts train as one does, and none waits for one that is gone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anydevice.virtual.process.environment import for_torchrun

from ..forked import Process, ranks

PROGRAMS = Path(__file__).with_name("rank_programs")
RANKS = int(os.environ.get("ANYDEVICE_TEST_RANKS", "2"))
TORCHRUN = ["-m", "torch.distributed.run"]


def launched(
    device: str, program: str, folder: Path, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """The launch, and what each rank reports; None of one that had no time to."""
    run = [] if device == "cpu" else ["-m", "anydevice", "run", "--gpus", str(RANKS)]
    torchrun = [*TORCHRUN, "--standalone", "--nproc-per-node", str(RANKS)]
    reports = folder / "reports"
    reports.mkdir(exist_ok=True)
    paths = [reports / f"{rank}.json" for rank in range(RANKS)]
    for path in paths:
        path.unlink(missing_ok=True)
    environment = {**for_torchrun(TORCHRUN), "REPORTS": str(reports), "OMP_NUM_THREADS": "1"}
    words = (PROGRAMS / f"{program}.py", device, *arguments)
    env = os.environ | environment
    forked = program == "learning" or "raising" in arguments
    if forked and "ANYDEVICE_TEST_RANKS" not in os.environ:
        gpus = 0 if device == "cpu" else RANKS
        done = ranks(*words, count=RANKS, gpus=gpus, env=env, timeout=500)
    else:
        command = [sys.executable, *run, *torchrun, *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    return done, [json.loads(path.read_text()) if path.exists() else None for path in paths]


@pytest.mark.parametrize(
    ("device", "every"),
    [
        ("cuda", 3),
        pytest.param("cuda", 1, marks=pytest.mark.long),
        pytest.param("cpu", 1, marks=pytest.mark.long),
    ],
)
def test_ranks_learn_and_measure_what_one_process_does(
    device: str, every: int, tmp_path: Path
) -> None:
    done, reports = launched(device, "learning", tmp_path, str(every))
    assert done.returncode == 0, done.stderr
    failures = [text for _, failed in reports for text in failed.values()]
    assert not failures, "\n".join(failures)
    assert all(checks > 15 / every for checks, _ in reports)


@pytest.mark.long
def test_terminated_and_killed_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    run = ("cpu", "interrupted", tmp_path, "ddp", str(folder))

    done, reports = launched(*run, "terminated", "10")
    assert reports == ["SystemExit: 143"] * RANKS, done.stderr
    newest = max(folder.iterdir())
    step = json.loads((newest / "state.json").read_text())["state"]["step"]
    assert step >= 10

    done, reports = launched(*run, "killed", str(step + 12))
    assert f"resuming from {newest} (epoch" in done.stderr
    assert f"rank 0 stops: rank {RANKS - 1} failed: it ended without an error" in done.stderr

    ends_as_left_alone(*run)


@pytest.mark.long
def test_shards_that_are_read_again_end_with_the_same_bits(tmp_path: Path) -> None:
    run = ("cuda", "interrupted", tmp_path, "fsdp", str(tmp_path / "checkpoints"))
    done, _ = launched(*run, "killed", "22")
    assert f"rank 0 stops: rank {RANKS - 1} failed: it ended without an error" in done.stderr
    ends_as_left_alone(*run)


def ends_as_left_alone(*run: Any) -> None:
    done, reports = launched(*run, "left alone", "0")
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stderr
    resumed, whole = reports[0]
    assert resumed == whole
    assert all(report == reports[0] for report in reports)


@pytest.mark.parametrize(
    ("device", "how"),
    [("cuda", "raising"), pytest.param("cpu", "waiting", marks=pytest.mark.long)],
)
def test_a_rank_that_raises_ends_all_with_its_error(device: str, how: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    done, reports = launched(device, "interrupted", tmp_path, "ddp", folder, how, "5")
    assert done.returncode == 1
    last, text = RANKS - 1, "ValueError: a bad batch"
    assert f"rank 0 stops: rank {last} failed: {text}; raised in the callback" in done.stderr
    assert how == "waiting" or reports[last] == text
    assert (reports[0] or "RankError").startswith("RankError")


LAST_TO_LEAVE = """
import os, select, sys
from pathlib import Path
import torch
import torch.distributed as dist
import anydevice as ad
from anydevice.train.callbacks import Callback

rank, port = int(sys.argv[1]), Path("port")
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    Path("port.new").write_text(str(store.port))
    Path("port.new").rename(port)
else:
    while not port.exists():
        pass
    store = dist.TCPStore("127.0.0.1", int(port.read_text()), 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)


class LastToLeave(Callback):
    def on_end(self, trial):
        if rank == 1:
            select.select([os.pidfd_open(trial.ranks.homes[0][1])], [], [])


trial = ad.Trial(torch.nn.Linear(2, 2), "sgd", "mse", callbacks=[LastToLeave()])
trial.with_generators((torch.ones(8, 2), torch.ones(8, 2)), batch_size=4).run(1, verbose=False)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a process as Linux can")
def test_a_rank_may_leave_after_the_one_that_keeps_the_store(tmp_path: Path) -> None:
    both = [Process("-c", LAST_TO_LEAVE, str(rank), cwd=tmp_path) for rank in range(2)]
    assert [process.wait() for process in both] == [0, 0]
