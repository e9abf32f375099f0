"""Sweeps that are interrupted, killed, doubled, or run out of disk, as programs of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import anydevice as ad
from anydevice.sweep.records.claims import is_claimed

from ..forked import Process, python

SWEEPING = Path(__file__).with_name("sweeping.py")
WATCHED = """
import os, time
from pathlib import Path


def experiment(run):
    (run.folder / f"began-{os.getpid()}").touch()
    yield {"loss": 1.0}
    while not Path("go").exists():
        time.sleep(0.01)
    yield {"loss": 0.5}
"""
ORDER = """
experiment = "watched:experiment"
folder = "runs"
[grid]
lr = [1, 2]
"""


def sweep(folder: Path) -> Process:
    (folder / "watched.py").write_text(WATCHED)
    (folder / "order.toml").write_text(ORDER)
    return Process(SWEEPING, "order.toml", cwd=folder)


def wait_for(what: Callable[[], bool], process: Process | None = None) -> None:
    while not what():
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def began(folder: Path) -> list[int]:
    """The processes that have begun a run, in whatever order."""
    return [int(path.name[6:]) for path in folder.glob("runs/runs/*/began-*")]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_ends_the_runs_and_the_next_call_goes_on(tmp_path: Path) -> None:
    process = sweep(tmp_path)
    wait_for(lambda: bool(began(tmp_path)), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert "interrupted: 0 of 2 runs done" in out
    assert "Traceback" not in err
    wait_for(lambda: not lives(began(tmp_path)[0]))
    assert [r.state for r in ad.Results.of(tmp_path / "runs")] == ["running"]
    assert ad.Results.of(tmp_path / "runs").rows()[0]["state"] == "interrupted"
    (tmp_path / "go").touch()
    process = sweep(tmp_path)
    assert process.wait() == 0
    assert [r.state for r in ad.Results.of(tmp_path / "runs")] == ["done", "done"]


def test_a_sweep_that_is_killed_takes_its_runs_with_it(tmp_path: Path) -> None:
    process = sweep(tmp_path)
    wait_for(lambda: bool(began(tmp_path)), process)
    (run,) = began(tmp_path)
    process.kill()
    process.communicate()
    wait_for(lambda: not lives(run))


def test_runs_whose_server_is_killed_are_failed_rows_and_the_others_are_done(
    tmp_path: Path,
) -> None:
    process = sweep(tmp_path)
    wait_for(lambda: bool(began(tmp_path)), process)
    (run,) = began(tmp_path)
    server = int(Path(f"/proc/{run}/stat").read_text().split(") ")[1].split()[1])
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not lives(run))
    (tmp_path / "go").touch()
    assert process.wait() == 1
    first, second = ad.Results.of(tmp_path / "runs")
    assert (first.state, second.state) == ("failed", "done")
    assert "killed by SIGKILL" in first.error


def test_two_sweeps_in_one_folder_share_the_runs(tmp_path: Path) -> None:
    one, other = sweep(tmp_path), sweep(tmp_path)
    wait_for(lambda: len(began(tmp_path)) == 2)
    results = ad.Results.of(tmp_path / "runs")
    assert [is_claimed(tmp_path / "runs", r.key) for r in results] == [True, True]
    (tmp_path / "go").touch()
    tables = [
        process.communicate()[0].split("\n\n")[-1].splitlines()[-2:] for process in (one, other)
    ]
    assert (one.returncode, other.returncode) == (0, 0)
    assert len(began(tmp_path)) == 2
    assert [len(r.epochs) for r in ad.Results.of(tmp_path / "runs")] == [2, 2]
    assert tables[0] == tables[1]


@pytest.mark.long
def test_a_run_that_another_sweep_leaves_is_taken_over(tmp_path: Path) -> None:
    one = sweep(tmp_path)
    wait_for(lambda: len(began(tmp_path)) == 1, one)
    other = sweep(tmp_path)
    wait_for(lambda: len(began(tmp_path)) == 2, other)
    one.kill()
    (tmp_path / "go").touch()
    assert other.wait() == 0
    assert [r.state for r in ad.Results.of(tmp_path / "runs")] == ["done", "done"]


DISK = """
import subprocess, sys
import anydevice as ad
from anydevice.sweep.records.records import RecordError


def mount(options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", "disk"], check=True)


def experiment(run):
    for epoch in range(3):
        yield {"loss": run.lr}


if __name__ == "__main__":
    mount("size=40k")
    sweep = ad.Sweep(experiment, ad.grid(lr=list(range(12))))
    for change in ("remount,ro", "remount,rw,size=10m"):
        try:
            sweep.run("disk/runs", verbose=False)
        except RecordError as error:
            print(error)
        before = ad.Results.of("disk/runs")
        print([r.state for r in before.records], before.damaged)
        mount(change)
    results = sweep.run("disk/runs", verbose=False)
    kept = [r for r in before if r.finished]
    print(len(results), results.complete, [r for r in results if r in kept] == kept)
"""


@pytest.mark.long
def test_a_full_disk_and_one_that_cannot_be_written_lose_nothing(tmp_path: Path) -> None:
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run(
        [*alone, "mount", "-t", "tmpfs", "t", "/mnt"], capture_output=True
    ).returncode:
        pytest.skip("needs a user namespace in which a small disk can be mounted")
    (tmp_path / "disk").mkdir()
    (tmp_path / "program.py").write_text(DISK)
    command = [*alone, sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    full, states, read_only, again, last = done.stdout.splitlines()
    assert "could not be written (No space left on device)" in full
    assert "Make room or name another folder, and run again." in full
    assert states.startswith("['done', 'done'")
    assert states.endswith("[]")
    assert "could not be written (Read-only file system)" in read_only
    assert again == states
    assert last == "12 True True"


@pytest.mark.parametrize(
    "guard", ["if __name__ == '__main__':", pytest.param("if True:", marks=pytest.mark.long)]
)
def test_a_program_may_hold_its_experiment_with_or_without_a_guard(
    tmp_path: Path, guard: str
) -> None:
    (tmp_path / "program.py").write_text(f"""
import anydevice as ad
SCALE = 3

def experiment(run):
    return {{"loss": run.lr * SCALE}}

{guard}
    results = ad.Sweep(experiment, ad.grid(lr=[1, 2])).run("runs", verbose=False)
    print([r.last["loss"] for r in results])
""")
    done = python("program.py", cwd=tmp_path)
    assert done.stdout == "[3, 6]\n", done.stderr


def test_a_notebooks_experiment_goes_by_cloudpickle(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    cells = """
import anydevice as ad
SCALE = 3
def experiment(run):
    return {"loss": run.lr * SCALE}
print([r.last["loss"] for r in ad.Sweep(experiment, ad.grid(lr=[1, 2])).run("r", verbose=False)])
"""
    done = subprocess.run(
        [sys.executable, "-"], input=cells, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "[3, 6]\n", done.stderr
