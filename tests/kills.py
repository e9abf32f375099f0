"""Trainings of seven kinds that are killed again and again end as those that were left alone.

python -m tests.kills --kills 1000          in turns of all kinds, half of them at random instants
python -m tests.kills --kills 20 --only ddp fsdp --seed 3

A kill is SIGKILL: at a random instant, or before the n-th write of any of its processes, for each n
there is. Of several processes one is killed, or all at once, as when the machine goes down. Those
that are left have to end by themselves; while they have not met yet, this program ends them, as
torchrun does.

Note [Kills that cost little]

A start is a fork of this process, which has imported all that a training needs and computed
nothing. The writes of all processes of a training are counted in memory that they share.
"""

import argparse
import atexit
import gc
import itertools
import json
import mmap
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
import torch._dynamo  # an optimizer imports it at its first step

from anydevice.sweep.processes import pool
from anydevice.train.checkpoint import checkpoints, shards

from . import killed
from .sweep.sweeping import Forked

WRITES = ("open", "write", "fsync", "mkdir", "chmod", "rename", "replace", "unlink", "rmdir")
PATIENCE = 300.0  # seconds, after which a training hangs
ALONE = 30.0  # seconds that ranks have to end by themselves when one was killed
MOMENT = 0.005  # seconds; an instant is up to so long after a write


class Count:
    """A number that all processes of a training count up."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8)

    def next(self) -> int:
        number = int.from_bytes(self.memory[:8])
        self.memory[:8] = (number + 1).to_bytes(8)
        return number

    @property
    def value(self) -> int:
        return int.from_bytes(self.memory[:8])


class Training:
    """Processes that train, in a folder of their own."""

    def __init__(self, kind: str, folder: Path, fatal: int = -1, *, together: bool = True) -> None:
        self.folder, self.fatal, self.together = folder, fatal, together
        self.writes, world = Count(), killed.RANKS.get(kind, 1)
        folder.mkdir(exist_ok=True)
        for left in [*folder.glob("end-*"), *folder.glob("met-*")]:
            left.unlink()
        port = _free_port() if world > 1 else 0
        self.began = time.monotonic()
        self.pids: list[int] = []
        for rank in range(world):
            self.pids.append(self._fork(kind, rank, world, port))
        self.codes: dict[int, int] = {}

    def _fork(self, kind: str, rank: int, world: int, port: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setpgid(0, 0)
            said = os.open(self.folder / f"said-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(said, 2)
            os.dup2(said, 1)
            if world > 1:
                killed.as_rank(rank, world, port)
            write = Path.write_text
            at_each_write(self._maybe_die(os.getpid()))
            end = killed.outcome(kind, self.folder)
            self.fatal = -1
            write(self.folder / f"end-{rank}", json.dumps(end))
            code = 0
        except BaseException:
            traceback.print_exc()
        _end(code)

    def _maybe_die(self, main: int) -> Callable[[], None]:
        """What is done before each write: the fatal one kills its process, and perhaps the rest."""
        before = list(self.pids)  # ranks that were started earlier

        def look() -> None:
            if self.writes.next() == self.fatal:
                for pid in [*(before if self.together else []), main, os.getpid()]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        return look

    def wait(self, seconds: float) -> bool:
        """Whether all have ended within these seconds."""
        deadline = time.monotonic() + seconds
        while True:
            for pid in self.pids:
                if pid not in self.codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                    self.codes[pid] = os.waitstatus_to_exitcode(ended[1])
            if len(self.codes) == len(self.pids) or time.monotonic() > deadline:
                return len(self.codes) == len(self.pids)
            time.sleep(0.002)

    def reaches(self, writes: int) -> bool:
        """Whether it comes to have made so many writes; else it has ended."""
        while self.writes.value < writes:
            if self.wait(0):
                return False
            time.sleep(0.0005)
        return True

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            if pid not in self.codes:
                os.kill(pid, signal.SIGKILL)

    def finished(self) -> bool:
        """Waits for all to end; whether they did by themselves and well."""
        while not self.codes and not self.wait(0) and time.monotonic() < self.began + PATIENCE:
            time.sleep(0.002)
        died = -signal.SIGKILL in self.codes.values()
        if not self.wait(ALONE if died else PATIENCE):
            self.kill(self.pids)
            met = len(list(self.folder.glob("met-*")))
            if died and met < len(self.pids) > 1:
                self.wait(PATIENCE)
                return False
            raise AssertionError(f"it hangs:\n{self.said()}")
        assert -signal.SIGKILL in self.codes.values() or not any(self.codes.values()), self.said()
        return not any(self.codes.values())

    def ends(self) -> list[Any]:
        """What each process ended with."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("end-*"))]

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("said-*")))


def at_each_write(look: Callable[[], None]) -> None:
    """Calls `look` before each write of this process and of those that it forks."""

    def wrapped(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            look()
            return function(*arguments, **options)

        return call

    for name in WRITES:
        setattr(os, name, wrapped(getattr(os, name)))
    for module in (checkpoints, shards):
        if hasattr(module, "save_file"):
            module.save_file = wrapped(module.save_file)


@contextmanager
def own_folder() -> Iterator[Path]:
    """Not a TemporaryDirectory, which a forked process would remove when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        yield folder
    except AssertionError as error:
        error.add_note(f"what is left is in {folder}")
        raise
    shutil.rmtree(folder, ignore_errors=True)


@cache
def left_alone(kind: str) -> tuple[list[Any], int]:
    """What it ends with when nothing disturbs it, and its writes."""
    with own_folder() as folder:
        training = Training(kind, folder)
        assert training.finished(), training.said()
        ends = training.ends()
        assert ends, training.said()
        assert all(end == ends[0] for end in ends)
        return ends[0], training.writes.value


def killed_until_it_ends(
    kind: str, folder: Path, chance: random.Random, points: Iterator[int], most: int
) -> Counter[str]:
    """One training, killed at a write, then at random instants until it comes to its end."""
    expected, writes = left_alone(kind)
    kills: Counter[str] = Counter()
    for number in range(most + 1):
        together = chance.random() < 0.5
        at_write = not number % 2 and number < most
        fatal = next(points) if at_write else -1
        training = Training(kind, folder, fatal, together=together)
        if number % 2 and number < most and training.reaches(chance.randrange(writes)):
            time.sleep(chance.uniform(0, MOMENT))
            training.kill(training.pids if together else training.pids[-1:])
        done = training.finished()
        if kind == "sweep" and (folder / "sweep" / "sweep.json").exists():
            killed.table_of(folder)  # whatever is there can be read
        if done:
            ends = training.ends()
            assert ends, training.said()
            assert all(end == expected for end in ends), (expected, ends, training.said())
            return kills
        kills["at a write" if at_write else "at an instant"] += 1
    raise AssertionError(f"it does not come to an end:\n{training.said()}")


def points_of(kind: str, chance: random.Random) -> Iterator[int]:
    """Each write of a training once, in any order, again and again."""
    points = list(range(left_alone(kind)[1]))
    while True:
        chance.shuffle(points)
        yield from points


def main(kinds: list[str], wanted: int, seed: int, most: int) -> Counter[str]:
    """How many kills there were of each kind; an AssertionError for an end that differs."""
    chance = random.Random(seed)
    points = {kind: points_of(kind, chance) for kind in kinds}
    total: Counter[str] = Counter()
    for kind in itertools.cycle(kinds):
        with own_folder() as folder:
            found = killed_until_it_ends(kind, folder, chance, points[kind], most)
        total.update({f"{kind} {how}": kills for how, kills in found.items()})
        print(f"{total.total():5} kills, the last of {kind}: {dict(found)}", flush=True)
        if total.total() >= wanted:
            return total
    raise AssertionError("no kinds")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _end(code: int) -> NoReturn:
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(killed.KINDS), choices=killed.KINDS)
    parser.add_argument("--most", type=int, default=5, help="kills of one training")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if "fsdp" in given.only:
        import anydevice.train.distributed.fsdp  # noqa: F401  takes a second
    pool.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=None)  # type: ignore[assignment]
    gc.freeze()  # a child need not look through all that was imported
    total = main(given.only, given.kills, given.seed, given.most)
    for kind in given.only:
        writes = left_alone(kind)[1]
        hows = [f"{total[f'{kind} {how}']} {how}" for how in ("at a write", "at an instant")]
        print(f"{kind:12} {', '.join(hows)} (a training has {writes} writes)")
    print(f"{total.total()} kills, all ends equal to the bit")
