"""A program in a process of its own, which may enable any machine."""

import json
import os
import subprocess
import sys
from typing import Any

START = "import json, os, torch\nfrom anydevice import virtual\ntorch.set_num_threads(1)\n"


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
