"""A run that is asked to end, killed, or brought down by one rank, and goes on when run again.

python interrupted.py DEVICE STRATEGY FOLDER HOW STEP
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from anydevice.train.callbacks import Callback
from anydevice.train.history import SPEED
from anydevice.train.trial import Trial

DEVICE, STRATEGY, FOLDER, HOW, STEP = sys.argv[1:]
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = RANKS - 1


class Waits(Callback):
    """At the end it waits for all ranks, also for one that has failed."""

    def on_end(self, trial):
        trial.ranks.any(False)


class Interrupted(Callback):
    """What happens to the last rank at a step."""

    def on_step(self, trial):
        if RANK != LAST or trial.job.step != int(STEP):
            return
        if HOW == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if HOW == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        if HOW in ("raising", "waiting"):
            raise ValueError("a bad batch")


def made(*callbacks):
    torch.manual_seed(0)
    x = torch.randn(330, 6)
    y = (x.sum(1) > 0).long()
    norm = nn.BatchNorm1d(32)
    network = nn.Sequential(nn.Linear(6, 32), norm, nn.ReLU(), nn.Dropout(), nn.Linear(32, 2))
    metrics = ["loss", "accuracy"]
    trial = Trial(network, "adam", "cross_entropy", metrics=metrics, callbacks=callbacks)
    trial.to(DEVICE).with_options(strategy=STRATEGY)
    return trial.with_generators((x, y), (x, y), batch_size=20)


def outcome(trial):
    """Bits of the weights, and the figures."""
    digest = hashlib.sha256()
    for tensor in trial.network.state_dict().values():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(whole.cpu().numpy().tobytes())
    figures = [{k: v for k, v in record.items() if k not in SPEED} for record in trial.history]
    return [digest.hexdigest(), figures]


reports = Path(os.environ["REPORTS"])
try:
    trial = made(Interrupted(), *([Waits()] if HOW == "waiting" else [])).checkpoint(
        FOLDER, every=3
    )
    trial.run(3, verbose=False)
    found = outcome(trial)
    if HOW == "left alone":
        whole = made()
        whole.run(3, verbose=False)
        found = [found, outcome(whole)]
except BaseException as error:
    found = f"{type(error).__name__}: {error}"
    raise
finally:
    (reports / f"{RANK}.json").write_text(json.dumps(found))
