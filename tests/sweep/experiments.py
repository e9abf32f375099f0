"""Experiments that the tests of sweeps run, each in processes of their own."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import anydevice as ad


def squares(run):
    """A record an epoch; the figures depend on the parameters and the seed alone."""
    for epoch in range(1, run.parameters.get("epochs", 2) + 1):
        yield {"loss": run.lr * epoch + float(torch.rand(()))}


def dictionary(run):
    return {"loss": run.lr, "accuracy": torch.tensor(0.5)}


def trial(run):
    x = torch.randn(40, 4)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    trial = ad.Trial(network, "sgd", "cross_entropy", metrics=["loss", "accuracy"])
    trial.to(run.parameters.get("device", "cpu")).with_generators((x, (x.sum(1) > 0).long()))
    return trial.run(epochs=2, verbose=False)


def trouble(run):
    """Whatever can go wrong with a process."""
    print("about to", run.what, flush=True)
    match run.what:
        case "nothing":
            return {"loss": 1.0}
        case "raise":
            raise ValueError("the trouble that was asked for")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            import ctypes

            ctypes.string_at(0)
        case "exit":
            sys.exit(3)
        case "exit at once":
            os._exit(64)
        case "real-time signal":
            os.kill(os.getpid(), signal.SIGRTMIN + 1)
        case "return":
            return 3.5
        case "yield":
            return iter([3.5])
        case "memory":
            raise torch.OutOfMemoryError("CUDA out of memory.")
    return None


def where(run):
    """What a run sees of the machine, and what it leaves in its own folder."""
    (run.folder / "mine.txt").write_text(str(run.seed))
    gpu = torch.ones(1, device="cuda").device.index if torch.cuda.is_available() else None
    limit = torch.cuda.get_per_process_memory_fraction() if gpu is not None else 1.0
    return {"gpu": gpu, "limit": limit, "pid": os.getpid(), "threads": torch.get_num_threads()}


def watched(run):
    """Goes on while the file `go` is not there: the test decides when it ends."""
    (run.folder / f"began-{os.getpid()}").touch()
    yield {"loss": 1.0}
    while not (Path(run.go) / "go").exists():
        time.sleep(0.01)
    yield {"loss": 0.5}


def imported(run):
    return {"there": "torch._dynamo" in sys.modules}


def graded(run):
    """Good runs and bad ones, for halving; says when it is closed."""
    try:
        for epoch in range(1, 10):
            yield {"accuracy": run.quality * epoch}
    finally:
        (run.folder / "closed").touch()


def checkpointed(run):
    """A trial that keeps checkpoints, and ends its process hard the first time, after a step."""
    from anydevice.train.callbacks import Callback

    class Crash(Callback):
        def on_step(self, trial):
            marker = run.folder / "crashed"
            if trial.job.step == 7 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    x = torch.randn(60, 4)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    callbacks = [Crash()] if run.crash else []
    trial = ad.Trial(network, "sgd", "cross_entropy", callbacks=callbacks)
    trial.with_generators((x, (x.sum(1) > 0).long()), batch_size=20)
    return trial.checkpoint(run.folder / "checkpoints", every=1).run(epochs=4, verbose=False)
