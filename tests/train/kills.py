"""A training that is killed again and again ends as one that was left alone.

python -m tests.train.kills --rounds 200
"""

import argparse
import json
import random
import tempfile
import time
from functools import cache
from pathlib import Path

from ..forked import Process

PROGRAM = """
import hashlib, json, sys, time
import torch
from torch import nn
from anydevice.train.callbacks import Callback
from anydevice.train.history import SPEED
from anydevice.train.trial import Trial

folder, kind = sys.argv[1:]
torch.manual_seed(0)
x = torch.randn(330, 6)
y = (x.sum(1) > 0).long()
if kind == "loader":
    dataset = [(a, b) for a, b in zip(x, y)]
    data = torch.utils.data.DataLoader(dataset, batch_size=20, shuffle=True)
else:
    data = (x, y)
network = nn.Sequential(
    nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 2)
)


class Steps(Callback):
    def on_step(self, trial):
        print(trial.job.step, flush=True)  # a kill is aimed at a step, whatever the machine's pace
        time.sleep(0.01)


trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"], callbacks=[Steps()])
trial.with_generators(data, (x, y), batch_size=20).checkpoint(folder, every=3)
history = trial.run(4, verbose=False)
digest = hashlib.sha256()
for tensor in network.state_dict().values():
    digest.update(tensor.numpy().tobytes())
figures = [{k: v for k, v in record.items() if k not in SPEED} for record in history]
print(json.dumps([digest.hexdigest(), figures]))
"""


def started(folder: Path, kind: str) -> Process:
    return Process("-c", PROGRAM, folder, kind)


def ending(process: Process) -> list:
    """What the program prints last."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@cache
def left_alone(kind: str) -> list:
    """What it prints last when nothing disturbs it."""
    with tempfile.TemporaryDirectory() as folder:
        return ending(started(Path(folder), kind))


def killed(kind: str, rounds: int, seed: int) -> tuple[list, int]:
    """What it prints last after so many kills at random instants, and how many there were.

    Each start does a few steps more than it takes to write a checkpoint, so that it gets further.
    """
    chance, kills = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        while kills < rounds:
            process = started(Path(folder), kind)
            for _ in range(chance.randint(4, 15)):
                line = process.readline()
            time.sleep(chance.uniform(0, 0.02))
            process.kill()
            kills += 1
            _, err = process.communicate()
            assert kills == 1 or "resuming from" in err, err
            if not line:  # it had come to its end
                break
        return ending(started(Path(folder), kind)), kills


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    done = 0
    while done < given.rounds:
        for kind in ("tensors", "loader"):
            expected = left_alone(kind)
            found, kills = killed(kind, rounds=10, seed=given.seed + done)
            done += kills
            assert found == expected, (kind, given.seed + done)
            print(f"{done} kills, equal to the bit", flush=True)
