"""What the environment says to the Pythons that a process starts, so that they have its GPUs.

They find `inherit/sitecustomize.py` on PYTHONPATH; where a program replaces that, `anydevice.pth`,
which lies beside the installed package, finds it by ANYDEVICE_INHERIT.
"""

import json
import os
from pathlib import Path

from anydevice.virtual import visible
from anydevice.virtual.machine import Machine

INHERIT = Path(__file__).parent / "inherit"


def changes(wanted: Machine, *, trace: str | None = None) -> dict[str, str | None]:
    """The variables that give a Python these GPUs; None is one that has to go."""
    hidden = visible.hides_real_gpus()
    asked = {
        "gpus": wanted.gpus,
        "gpu": wanted.gpu.kind,
        "memory": wanted.gpu.memory,
        "trace": trace,
        "hide_real_gpus": hidden or _hidden_already(),
    }
    before = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([str(INHERIT), *([before] if before else [])]),
        "ANYDEVICE_INHERIT": str(INHERIT),
        "ANYDEVICE_VIRTUAL": json.dumps(asked),
        **({visible.VARIABLE: None} if hidden else {}),
    }


def _hidden_already() -> bool:
    """Where this process has GPUs that it was given in the same way."""
    return bool(json.loads(os.environ.get("ANYDEVICE_VIRTUAL", "{}")).get("hide_real_gpus"))
