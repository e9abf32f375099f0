"""Where torchrun's processes meet on a laptop without a network, whose own name leads nowhere."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"


def environment(program: Sequence[str]) -> dict[str, str]:
    """What torchrun, if that is the program, needs to find its own machine."""
    command = Path(program[0]).name if program else ""
    launches = command == "torchrun" or program[:2] == ["-m", "torch.distributed.run"]
    if not launches or "PET_LOCAL_ADDR" in os.environ or _leads_somewhere(socket.getfqdn()):
        return {}
    return {"PET_LOCAL_ADDR": LOOPBACK}  # as torchrun --local-addr


def _leads_somewhere(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False
