"""A training that is killed again and again ends as one that was left alone.

python -m tests.train.kills --rounds 200
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import hashlib, json, sys, time
import torch
from torch import nn
from anydevice.train.callbacks import Callback
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


class Slow(Callback):
    def on_step(self, trial):
        time.sleep(0.01)  # so that kills fall into the training, not into imports


trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"], callbacks=[Slow()])
trial.with_generators(data, (x, y), batch_size=20).checkpoint(folder, every=3)
history = trial.run(4, verbose=False)
digest = hashlib.sha256()
for tensor in network.state_dict().values():
    digest.update(tensor.numpy().tobytes())
figures = [{k: v for k, v in record.items() if k != "seconds"} for record in history]
print(json.dumps([digest.hexdigest(), figures]))
"""


def started(folder: Path, kind: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(folder), kind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left_alone(kind: str) -> tuple[list, float]:
    """What the program prints, and the seconds it takes."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        out, err = started(Path(folder), kind).communicate()
        assert out, err
        return json.loads(out), time.monotonic() - begin


def killed(kind: str, within: float, rounds: int, seed: int, by: int = signal.SIGKILL) -> tuple:
    """What it prints at last after so many kills at random instants, and how many there were."""
    instants, kills, resumed = random.Random(seed), 0, False
    with tempfile.TemporaryDirectory() as folder:
        while True:
            process = started(Path(folder), kind)
            if kills < rounds:
                try:
                    process.wait(instants.uniform(0.4, 1.05) * within)
                except subprocess.TimeoutExpired:
                    os.kill(process.pid, by)
                    kills += 1
            out, err = process.communicate()
            assert process.returncode in (0, -by, 128 + by), err
            resumed = resumed or "going on from" in err
            if process.returncode == 0:
                assert resumed, "no kill fell into the training"
                return json.loads(out), kills


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    done = 0
    while done < given.rounds:
        for kind in ("tensors", "loader"):
            expected, seconds = left_alone(kind)
            found, kills = killed(kind, seconds, rounds=10, seed=given.seed + done)
            done += kills
            assert found == expected, (kind, given.seed + done)
            print(f"{done} kills, equal to the bit", flush=True)
