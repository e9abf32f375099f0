"""A sweep for TensorBoard: one run of it for each run, with its curves and hyperparameters.

SummaryWriter.add_hparams would make another run for each run's hyperparameters; here they stand in
the run itself.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anydevice.errors import UsageError
from anydevice.sweep.jsonable import is_number
from anydevice.sweep.records.records import Record


def write_runs(records: Sequence[Record], measured: Iterable[str], folder: Path) -> Path:
    """Writes the folder for `tensorboard --logdir`."""
    try:
        from torch.utils.tensorboard.summary import hparams
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "expected the package tensorboard, got none: pip install anydevice[tensorboard]."
        ) from error
    figures = dict.fromkeys((*measured, "seconds"))
    for number, record in enumerate(records, 1):
        with SummaryWriter(str(folder / f"{number:03d}-{record.key[:6]}")) as writer:
            for summary in hparams(_parameters(record), figures):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)
            for epoch in record.epochs:
                for name, figure in epoch.items():
                    if name != "epoch" and is_number(figure):
                        writer.add_scalar(name, figure, epoch["epoch"])
    return folder


def _parameters(record: Record) -> dict[str, Any]:
    plain = (str, bool, int, float)
    given = record.parameters.items()
    return {name: value if isinstance(value, plain) else str(value) for name, value in given}
