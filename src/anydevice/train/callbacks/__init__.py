"""What happens around the training, from progress bars to learning rates.

>>> from anydevice.train.callbacks import EarlyStopping
>>> trial = ad.Trial(network, "adam", "cross_entropy", callbacks=[EarlyStopping("val_loss")])
"""

from anydevice.train.callbacks.averaging import EMA, SWA
from anydevice.train.callbacks.callback import Callback
from anydevice.train.callbacks.guard import NanGuard, NotFiniteError
from anydevice.train.callbacks.loggers import Aim, Comet, Logger, MLflow, WandB
from anydevice.train.callbacks.progress import Progress
from anydevice.train.callbacks.records import CSV, Profile, TensorBoard
from anydevice.train.callbacks.schedule import Schedule
from anydevice.train.callbacks.watching import Best, EarlyStopping

__all__ = [
    "CSV",
    "EMA",
    "SWA",
    "Aim",
    "Best",
    "Callback",
    "Comet",
    "EarlyStopping",
    "Logger",
    "MLflow",
    "NanGuard",
    "NotFiniteError",
    "Profile",
    "Progress",
    "Schedule",
    "TensorBoard",
    "WandB",
]
