"""A program in a process of its own, which may enable any machine."""

import json
import os
import subprocess
import sys
from typing import Any

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
    done = subprocess.run(
        [sys.executable, "-c", START + program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
