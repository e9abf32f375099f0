"""The environment variables that give other Pythons this process's virtual GPUs.

A Python that is started with them finds `inherit/sitecustomize.py` on PYTHONPATH. Where a program
replaces PYTHONPATH, `anydevice.pth` in site-packages finds that file by ANYDEVICE_INHERIT.
"""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anydevice.virtual import visible
from anydevice.virtual.machine import Machine

# inherit/sitecustomize.py and inherit/anydevice.pth run in Pythons that may not have this package:
# they repeat the names, and a test holds them to these.
VIRTUAL = "ANYDEVICE_VIRTUAL"  # the virtual GPUs and how to run on them: an Inherited, as JSON
INHERIT = "ANYDEVICE_INHERIT"  # the folder of sitecustomize.py
MAIN = "ANYDEVICE_MAIN"  # the process id of the program itself, not of those that it starts
REPORTS = "ANYDEVICE_REPORTS"  # the folder where the program's other processes leave their tallies

INHERIT_FOLDER = Path(__file__).parent / "inherit"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Inherited:
    """What a Python gets from the process that started it."""

    machine: Machine
    trace: str | None = None
    hide_real_gpus: bool = False

    def to_json(self) -> str:
        """The value of ANYDEVICE_VIRTUAL."""
        return json.dumps({**vars(self), "machine": self.machine.to_dict()})

    @classmethod
    def from_json(cls, text: str) -> "Inherited":
        """What `to_json` wrote."""
        entry = json.loads(text)
        return cls(**{**entry, "machine": Machine.from_dict(entry["machine"])})


def changes(wanted: Machine, *, trace: str | None = None) -> dict[str, str | None]:
    """The variables that give a Python these GPUs; None is one to remove."""
    hidden = visible.hides_real_gpus()
    inherited = Inherited(wanted, trace, hide_real_gpus=hidden or _hidden_already())
    before = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([str(INHERIT_FOLDER), *([before] if before else [])]),
        INHERIT: str(INHERIT_FOLDER),
        VIRTUAL: inherited.to_json(),
        **({visible.VARIABLE: None} if hidden else {}),
    }


def for_torchrun(program: Sequence[str]) -> dict[str, str]:
    """What torchrun, if that is the program, needs to find this machine.

    Its processes meet at the machine's own name, which leads nowhere on a laptop without a network.
    """
    command = Path(program[0]).name if program else ""
    launches = command == "torchrun" or program[:2] == ["-m", "torch.distributed.run"]
    if not launches or "PET_LOCAL_ADDR" in os.environ or _is_known(socket.getfqdn()):
        return {}
    return {"PET_LOCAL_ADDR": LOOPBACK}  # as torchrun --local-addr


def _hidden_already() -> bool:
    """Whether this process got virtual GPUs in the same way, with the real ones hidden."""
    return VIRTUAL in os.environ and Inherited.from_json(os.environ[VIRTUAL]).hide_real_gpus


def _is_known(host: str) -> bool:
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False
