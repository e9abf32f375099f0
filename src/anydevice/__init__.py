"""Write a PyTorch program once; run it on any device; know how it will run before you have it.

The names below are the public face. They load on first use, so that `import anydevice` costs no
torch import; type checkers see the plain imports.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from anydevice.errors import UsageError
from anydevice.version import __version__

if TYPE_CHECKING:
    from anydevice import bench as bench
    from anydevice import check as check
    from anydevice import data as data
    from anydevice import plan as plan
    from anydevice import virtual as virtual
    from anydevice.devices.choose import DeviceNotFound as DeviceNotFound
    from anydevice.devices.choose import cpu as cpu
    from anydevice.devices.choose import current as current
    from anydevice.devices.choose import gpu as gpu
    from anydevice.devices.choose import num_gpus as num_gpus
    from anydevice.devices.choose import pick as pick
    from anydevice.devices.choose import try_all_gpus as try_all_gpus
    from anydevice.devices.choose import try_gpu as try_gpu
    from anydevice.devices.choose import use as use
    from anydevice.devices.explain.explanation import explain as explain
    from anydevice.devices.inventory import devices as devices
    from anydevice.devices.move import move as move
    from anydevice.devices.place import place as place
    from anydevice.devices.placement import placement as placement
    from anydevice.sweep.grid import Run as Run
    from anydevice.sweep.grid import grid as grid
    from anydevice.sweep.halving import halving as halving
    from anydevice.sweep.page.page import report as report
    from anydevice.sweep.results.results import Results as Results
    from anydevice.sweep.sample import integers as integers
    from anydevice.sweep.sample import log_uniform as log_uniform
    from anydevice.sweep.sample import sample as sample
    from anydevice.sweep.sample import uniform as uniform
    from anydevice.sweep.suggest import suggest as suggest
    from anydevice.sweep.sweep import Sweep as Sweep
    from anydevice.train import callbacks as callbacks
    from anydevice.train.faces.classifier import Classifier as Classifier
    from anydevice.train.questions.summary import summary as summary
    from anydevice.train.trial import Trial as Trial
    from anydevice.virtual.machine import virtual_gpus as virtual_gpus

_HOME = {
    "Classifier": "train.faces.classifier",
    "DeviceNotFound": "devices.choose",
    "Results": "sweep.results.results",
    "Run": "sweep.grid",
    "Sweep": "sweep.sweep",
    "Trial": "train.trial",
    "cpu": "devices.choose",
    "current": "devices.choose",
    "gpu": "devices.choose",
    "num_gpus": "devices.choose",
    "pick": "devices.choose",
    "try_all_gpus": "devices.choose",
    "try_gpu": "devices.choose",
    "use": "devices.choose",
    "explain": "devices.explain.explanation",
    "move": "devices.move",
    "place": "devices.place",
    "placement": "devices.placement",
    "grid": "sweep.grid",
    "halving": "sweep.halving",
    "integers": "sweep.sample",
    "log_uniform": "sweep.sample",
    "report": "sweep.page.page",
    "sample": "sweep.sample",
    "suggest": "sweep.suggest",
    "summary": "train.questions.summary",
    "uniform": "sweep.sample",
    "virtual_gpus": "virtual.machine",
}
_ROOMS = {  # ad.devices(), ad.plan(), ad.check() and ad.bench() can be called, too
    "bench": "bench",
    "callbacks": "train.callbacks",
    "check": "check",
    "data": "data",
    "devices": "devices",
    "plan": "plan",
    "virtual": "virtual",
}

__all__ = ["UsageError", "__version__", *_HOME, *_ROOMS]


def __getattr__(name: str) -> object:
    if name in _ROOMS:
        return import_module(f"anydevice.{_ROOMS[name]}")
    if name in _HOME:
        value = getattr(import_module(f"anydevice.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'anydevice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
