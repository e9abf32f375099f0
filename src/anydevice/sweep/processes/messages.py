"""The messages between a sweep's driver, its server and the processes of its runs, as JSON.

    driver → server    Setup, then a Job for each process
    server → driver    Ended, for each process
    process → driver   Epoch, Notice, Taken, DiskFailed, on a separate line
    driver → process   Verdict, after an Epoch that asks for one

The server reads them before it imports torch, so nothing here does.
"""

import base64
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from anydevice.sweep.experiment import Shipped
from anydevice.sweep.grid import Run
from anydevice.sweep.halving import Halving
from anydevice.sweep.jsonable import lenient, strict


@dataclass(frozen=True)
class Message:
    """Fields that JSON can hold; those that it cannot are changed in `plain` and `made_of`."""

    def plain(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def made_of(cls, plain: dict[str, Any]) -> Self:
        """The message with the fields that `plain` gave."""
        return cls(**plain)

    def to_json(self) -> bytes:
        """The message on its way."""
        return json.dumps({"kind": type(self).__name__, **self.plain()}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """The message that has come, which is one of this class or of a class below it."""
        plain = json.loads(data)
        message = KINDS[plain.pop("kind")].made_of(plain)
        assert isinstance(message, cls)
        return message


@dataclass(frozen=True)
class Setup(Message):
    """What the server is to be: the driver's arguments and virtual GPUs, and what does its jobs."""

    worker: str  # the module whose main(job, line) does a job
    argv: list[str]
    machine: dict[str, Any] | None = None  # as Machine.to_dict gives it


@dataclass(frozen=True)
class Resources:
    """What a process has of the machine."""

    threads: int | None = None  # None: as many as PyTorch takes
    gpus: tuple[int, ...] = ()  # the numbers, among all, of the GPUs that it sees
    visible: str | None = None  # CUDA_VISIBLE_DEVICES; None: as it is
    current: int | None = None  # the virtual GPU that `cuda` is
    share: float = 1.0  # of its GPU's memory


@dataclass(frozen=True)
class Job(Message):
    """One run for a process, or several to train as one."""

    runs: tuple[Run, ...]
    folder: Path
    experiment: Shipped
    about: dict[str, Any]  # what the records of all runs have in common
    seed: int
    resources: Resources
    retry_failed: bool = False
    halving: Halving | None = None
    workers: int = 1  # how many jobs run at a time
    number: int = 0  # by which the driver knows it

    def plain(self) -> dict[str, Any]:  # noqa: D102
        data = base64.b64encode(self.experiment.data).decode()
        return {
            **super().plain(),
            "runs": [run.parameters for run in self.runs],
            "folder": str(self.folder),
            "experiment": {**vars(self.experiment), "data": data},
            "resources": vars(self.resources),
            "halving": self.halving and self.halving.terms(),
        }

    @classmethod
    def made_of(cls, plain: dict[str, Any]) -> Self:  # noqa: D102
        shipped, resources = plain["experiment"], plain["resources"]
        made = {
            "runs": tuple(map(Run, plain["runs"])),
            "folder": Path(plain["folder"]),
            "experiment": Shipped(**{**shipped, "data": base64.b64decode(shipped["data"])}),
            "resources": Resources(**{**resources, "gpus": tuple(resources["gpus"])}),
            "halving": plain["halving"] and Halving(**plain["halving"]),
        }
        return cls(**{**plain, **made})


@dataclass(frozen=True)
class Report(Message):
    """What the driver hears about a job."""


@dataclass(frozen=True)
class Epoch(Report):
    """An epoch of a run is over; where it `asks`, the run waits for a Verdict."""

    key: str
    figures: dict[str, Any]
    asks: bool = False

    def plain(self) -> dict[str, Any]:  # noqa: D102
        return {**super().plain(), "figures": strict(self.figures)}

    @classmethod
    def made_of(cls, plain: dict[str, Any]) -> Self:  # noqa: D102
        return cls(**{**plain, "figures": lenient(plain["figures"])})


@dataclass(frozen=True)
class Notice(Report):
    """A sentence for people."""

    text: str


@dataclass(frozen=True)
class Taken(Report):
    """Another process has the run, or has done it."""


@dataclass(frozen=True)
class DiskFailed(Report):
    """A record could not be written; the text says which and why."""

    text: str
    own: bool = False  # the run has forbidden itself to write: other runs are unaffected


@dataclass(frozen=True)
class Ended(Report):
    """The process has ended: the last that is heard about a job."""

    number: int
    code: int


@dataclass(frozen=True)
class Verdict(Message):
    """Whether a run that asked continues."""

    continues: bool


KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Setup, Job, Epoch, Notice, Taken, DiskFailed, Ended, Verdict)
}
