"""A training is interrupted at each point where it writes, and goes on as if it had not been.

python -m tests.train.write_points killed|full FOLDER [EVERY]

Prints as JSON how many points there are, and for each, or every so many of them, what the
interrupted run ended with and whether it ended with the same bits when it was run again.
"""

import errno
import gc
import hashlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from anydevice.train.checkpoint import checkpoints
from anydevice.train.trial import Trial

WRITES = ("open", "write", "fsync", "mkdir", "chmod", "rename", "replace", "unlink", "rmdir")


def trained(folder):
    """The bits of the weights after two epochs, and a checkpoint after each; the newest stays."""
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))
    trial = Trial(network, "adam", "cross_entropy").with_generators((x, (x.sum(1) > 0).long()))
    trial.checkpoint(folder, keep=1).run(2, verbose=False)
    parts = [parameter.detach().numpy().tobytes() for parameter in network.parameters()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def at_each_write(act):
    """Calls `act` with the number of each write of this process, before it."""
    number = itertools.count()

    def wrapped(function):
        def call(*arguments, **options):
            act(next(number))
            return function(*arguments, **options)

        return call

    for name in WRITES:
        setattr(os, name, wrapped(getattr(os, name)))
    checkpoints.save_file = wrapped(checkpoints.save_file)


def in_a_child(act, folder):
    """How a run ends in which `act` may interfere: its bits, its error, or the signal."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        say = os.write
        at_each_write(act)
        try:
            end = trained(folder)
        except checkpoints.CheckpointError as error:
            end = f"CheckpointError: {error}"
        except BaseException as error:
            end = repr(error)
        say(writing, end.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    status = os.waitpid(child, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else said


def main(how, parent, every=1):
    expected = trained(parent / "alone")  # here, so that children find all modules imported
    counted = parent / "counted"
    in_a_child(lambda number: counted.write_text(str(number + 1)), parent / "counting")
    points = int(counted.read_text())
    ends = []
    gc.freeze()  # a child need not look through all that was imported
    for point in range(0, points, every):

        def interfere(number, point=point):
            if number == point and how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if number >= point and how == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        folder = parent / f"at-{point}"
        end = in_a_child(interfere, folder)
        again = in_a_child(lambda number: None, folder)
        left = sorted(path.name for path in folder.iterdir())
        ends.append([end, again == expected, left])
    print(json.dumps([points, ends]))


if __name__ == "__main__":
    torch.set_num_threads(1)  # other threads would not be there in a child
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
