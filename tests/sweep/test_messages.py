"""What a sweep's processes say to each other arrives as it was sent."""

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from anydevice.sweep.experiment import Shipped
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.processes.messages import (
    DiskFailed,
    Ended,
    Epoch,
    Job,
    Message,
    Notice,
    Report,
    Resources,
    Setup,
    Taken,
    Verdict,
)
from anydevice.virtual.machine import machine

RUN = Run({"lr": 0.1, "sizes": (1, 2), "device": "cuda"})
JOB = Job(
    (RUN, Run({"lr": 0.2})),
    Path("runs/first"),
    Shipped(b"\x00pickled", "train.py", "package"),
    {"git": {"commit": "abc"}, "host": "here"},
    seed=3,
    resources=Resources(threads=2, gpus=(0, 3), visible="0,3", share=0.5),
    retry_failed=True,
    halving=Halving("accuracy", first=2),
    workers=4,
    number=7,
)


@pytest.mark.parametrize(
    "message",
    [
        Setup("anydevice.sweep.processes.worker", ["train.py", "--fast"]),
        Setup("anydevice.sweep.fuse.process", [], machine(2, "t4", memory="5GiB").to_dict()),
        JOB,
        Epoch(RUN.key, {"epoch": 1, "loss": inf, "text": "NaN-free"}, asks=True),
        Notice("2 runs are trained as one."),
        Taken(),
        DiskFailed("record.json could not be written."),
        Ended(7, -9),
        Verdict(False),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert Message.from_json(message.to_json()) == message
    assert type(message).from_json(message.to_json()) == message


def test_another_kind_of_message_than_expected_is_refused() -> None:
    with pytest.raises(AssertionError):
        Report.from_json(JOB.to_json())


def test_the_server_reads_messages_without_torch() -> None:
    program = "import anydevice.sweep.processes.server, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
