"""A sweep that is killed again and again ends with the table of one that was left alone.

python -m tests.sweep.kills --rounds 30
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anydevice.sweep.results.results import Results
from anydevice.train.history import SPEED

RUNS = 24
PROGRAM = """
import os, sys, time
import torch
from torch import nn
import anydevice as ad
from anydevice.train.callbacks import Callback


def pulse():
    with open(sys.argv[2], "ab") as file:  # a kill is aimed at this, whatever the machine's pace
        file.write(b".")
    time.sleep(0.01)


class Pulse(Callback):
    def on_step(self, trial):
        pulse()


def experiment(run):
    return by_hand(run) if run.kind == "hand" else by_trial(run)


def by_hand(run):
    for epoch in range(3):
        pulse()
        yield {"loss": run.lr + float(torch.rand(())), "accuracy": epoch / 3}


def by_trial(run):
    x = torch.randn(60, 4)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    trial = ad.Trial(network, "sgd", "cross_entropy", callbacks=[Pulse()])
    trial.with_generators((x, (x.sum(1) > 0).long()), batch_size=20)
    trial.checkpoint(run.folder / "checkpoints", every=1)
    return trial.run(3, verbose=False)


if __name__ == "__main__":
    runs = ad.grid(lr=[i / 10 for i in range(int(sys.argv[3]) // 2)], kind=["hand", "trial"])
    ad.Sweep(experiment, runs).run(sys.argv[1], workers=2)
"""


class Sweep:
    """The program in a folder of its own."""

    def __init__(self, folder: Path, runs: int) -> None:
        self.runs = runs
        self.folder, self.program, self.pulse = folder / "runs", folder / "p.py", folder / "pulse"
        self.program.write_text(PROGRAM)
        self.pulse.touch()

    def start(self) -> subprocess.Popen[str]:
        words = (self.program, self.folder, self.pulse, self.runs)
        command = [sys.executable, *map(str, words)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self) -> list[tuple]:
        """Lets it come to its end, and gives its table without what differs by nature."""
        process = self.start()
        out, _ = process.communicate()
        assert process.returncode == 0, out
        return self.table()

    def table(self) -> list[tuple]:
        results = Results.of(self.folder)
        assert not results.damaged, results.damaged
        return [
            (r.parameters, r.state, [{**e, **dict.fromkeys(SPEED)} for e in r.epochs], r.seed)
            for r in results
        ]

    def kill_after(self, pulses: int, delay: float) -> bool:
        """Kills it so many pulses after its start; False if it came to its end before."""
        process, before = self.start(), self.pulse.stat().st_size
        while process.poll() is None and self.pulse.stat().st_size < before + pulses:
            time.sleep(0.002)
        time.sleep(delay)
        ended = process.poll() is not None
        process.kill()
        out, _ = process.communicate()
        assert "Traceback" not in out, out
        return not ended


def killed(
    folder: Path, rounds: int, chance: random.Random, runs: int = RUNS
) -> tuple[list[tuple], int]:
    """Its table after so many kills at random instants, and how many there were."""
    sweep, kills = Sweep(folder, runs), 0
    while kills < rounds and sweep.kill_after(chance.randint(0, 12), chance.uniform(0, 0.03)):
        kills += 1
        if sweep.folder.exists() and (sweep.folder / "sweep.json").exists():
            sweep.table()  # whatever is there can be read
    return sweep.finish(), kills


def left_alone(runs: int = RUNS) -> list[tuple]:
    with tempfile.TemporaryDirectory() as folder:
        return Sweep(Path(folder), runs).finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    expected, done, chance = left_alone(), 0, random.Random(given.seed)
    assert len(expected) == RUNS
    while done < given.rounds:
        with tempfile.TemporaryDirectory() as place:
            found, kills = killed(Path(place), given.rounds - done, chance)
        done += kills
        differing = [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]]
        assert not differing, (done, given.seed, differing)
        print(f"{done} kills, the table of {RUNS} runs is the same", flush=True)
