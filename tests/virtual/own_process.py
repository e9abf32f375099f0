"""A program in a process of its own, which may enable any machine."""

import json
import os
from typing import Any

from ..forked import python

START = """
import json, os, torch
from anydevice import virtual
torch.set_num_threads(1)

def most_resident():  # not ru_maxrss, which begins with what the process that started this one held
    with open("/proc/self/status") as status:
        return 1024 * int(status.read().partition("VmHWM:")[2].split()[0])
"""


def run(program: str, **environment: str) -> Any:
    """What a program prints as JSON in its last line."""
    done = python("-c", START + program, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
