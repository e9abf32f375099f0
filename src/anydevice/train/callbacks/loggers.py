"""Histories for experiment trackers: Weights & Biases, MLflow, Comet, Aim, behind one interface."""

import math
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydevice.errors import UsageError
from anydevice.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from anydevice.train.trial import Trial


class Logger(Callback):
    """A tracker of another library: `begin`, `log` and `close` are all that one has to write.

    What is logged are the figures of each epoch's record that are one number.

    Example:
        >>> class Prints(ad.callbacks.Logger):
        ...     def log(self, figures, epoch):
        ...         print(epoch, sorted(figures)[0])
        >>> trial = ad.Trial(network, "adam", "cross_entropy", callbacks=[Prints()])
        >>> history = trial.with_generators((x, y)).run(epochs=1, verbose=False)
        1 grad_norm
    """

    on_every_rank = False

    def begin(self, settings: dict[str, Any]) -> None:
        """Start, with what is known of the trial: network, optimizer, options, device."""

    def log(self, figures: dict[str, float], epoch: int) -> None:
        """Keep the figures of an epoch."""
        raise NotImplementedError

    def close(self) -> None:
        """The run is over, or was broken off."""

    def on_start(self, trial: "Trial") -> None:  # noqa: D102
        self.begin(settings_of(trial))

    def on_end_epoch(self, trial: "Trial") -> None:  # noqa: D102
        record = trial.history[-1]
        figures = {
            name: float(figure)
            for name, figure in record.items()
            if name != "epoch" and isinstance(figure, (int, float))
        }
        self.log(figures, record["epoch"])

    def on_end(self, trial: "Trial") -> None:  # noqa: D102
        self.close()


class WandB(Logger):
    """Weights & Biases: `pip install 'anydevice[wandb]'`.

    Args:
        project: The project.
        name: The name of the run.
        mode: `"online"`, `"offline"` or `"disabled"`; without it, what WANDB_MODE says.
        folder: Where its files go.
        options: Other arguments of `wandb.init`.

    Raises:
        UsageError: At the start of a run without the package.

    Example:
        >>> board = ad.callbacks.WandB("digits", mode="offline")
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        mode: str | None = None,
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        known = {"project": project, "name": name, "mode": mode, "dir": folder and str(folder)}
        self.options = {k: v for k, v in known.items() if v is not None} | options
        self._run: Any = None

    def begin(self, settings: dict[str, Any]) -> None:  # noqa: D102
        self._run = _package("wandb", "wandb").init(config=settings, **self.options)

    def log(self, figures: dict[str, float], epoch: int) -> None:  # noqa: D102
        self._run.log(figures, step=epoch)

    def close(self) -> None:  # noqa: D102
        if self._run:
            self._run.finish()
            self._run = None


class MLflow(Logger):
    """MLflow: `pip install 'anydevice[mlflow]'`.

    Args:
        experiment: The experiment.
        name: The name of the run.
        uri: Where it is tracked, such as `"sqlite:///runs.db"` or the address of a server; without
            it, what MLFLOW_TRACKING_URI says.

    Raises:
        UsageError: At the start of a run without the package.

    Example:
        >>> tracker = ad.callbacks.MLflow("digits", uri="sqlite:///runs.db")
    """

    def __init__(
        self, experiment: str = "Default", name: str | None = None, *, uri: str | None = None
    ) -> None:
        self.experiment, self.name, self.uri = experiment, name, uri
        self._client: Any = None
        self._run = ""

    def begin(self, settings: dict[str, Any]) -> None:  # noqa: D102
        self._client = _package("mlflow", "mlflow").MlflowClient(self.uri)
        known = self._client.get_experiment_by_name(self.experiment)
        home = known.experiment_id if known else self._client.create_experiment(self.experiment)
        self._run = self._client.create_run(home, run_name=self.name).info.run_id
        for key, value in settings.items():
            self._client.log_param(self._run, key, value)

    def log(self, figures: dict[str, float], epoch: int) -> None:  # noqa: D102
        for name, figure in figures.items():
            self._client.log_metric(self._run, name, figure, step=epoch)

    def close(self) -> None:  # noqa: D102
        if self._client:
            self._client.set_terminated(self._run)
            self._client = None


class Comet(Logger):
    """Comet: `pip install 'anydevice[comet]'`.

    Args:
        project: The project.
        name: The name of the experiment.
        folder: A folder for an experiment without a network; it can be uploaded later.
        options: Other arguments of `comet_ml.Experiment`.

    Raises:
        UsageError: At the start of a run without the package.

    Example:
        >>> tracker = ad.callbacks.Comet("digits", folder=folder / "comet")
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.project, self.name, self.folder, self.options = project, name, folder, options
        self._experiment: Any = None

    def begin(self, settings: dict[str, Any]) -> None:  # noqa: D102
        comet = _package("comet_ml", "comet")
        how = {"project_name": self.project, **self.options}
        if self.folder is not None:
            how["offline_directory"] = str(self.folder)
            self._experiment = comet.OfflineExperiment(**how)
        else:
            self._experiment = comet.Experiment(**how)
        if self.name:
            self._experiment.set_name(self.name)
        self._experiment.log_parameters(settings)

    def log(self, figures: dict[str, float], epoch: int) -> None:  # noqa: D102
        self._experiment.log_metrics(figures, step=epoch, epoch=epoch)

    def close(self) -> None:  # noqa: D102
        if self._experiment:
            self._experiment.end()
            self._experiment = None


class Aim(Logger):
    """Aim: `pip install 'anydevice[aim]'`.

    Args:
        experiment: The experiment.
        folder: The folder of its repository; without it, the working directory.
        options: Other arguments of `aim.Run`.

    Raises:
        UsageError: At the start of a run without the package.

    Example:
        >>> tracker = ad.callbacks.Aim("digits", folder=folder)
    """

    def __init__(
        self, experiment: str | None = None, *, folder: str | Path | None = None, **options: Any
    ) -> None:
        repo = None if folder is None else str(folder)
        self.options = {"experiment": experiment, "repo": repo, **options}
        self._run: Any = None

    def begin(self, settings: dict[str, Any]) -> None:  # noqa: D102
        self._run = _package("aim", "aim").Run(**self.options)
        self._run["trial"] = settings

    def log(self, figures: dict[str, float], epoch: int) -> None:  # noqa: D102
        for name, figure in figures.items():
            if math.isfinite(figure):  # which is all that it keeps
                context = {"subset": "val" if name.startswith("val_") else "train"}
                self._run.track(figure, name=name, step=epoch, epoch=epoch, context=context)

    def close(self) -> None:  # noqa: D102
        if self._run:
            self._run.close()
            self._run = None


def settings_of(trial: "Trial") -> dict[str, Any]:
    """What is known of a trial before it runs, as plain values."""
    optimizer, options = trial.optimizer, vars(trial.options)
    default = vars(type(trial.options)())
    loss = trial.recipe.loss
    return {
        "network": type(trial.network).__name__,
        "parameters": sum(p.numel() for p in trial.network.parameters()),
        "optimizer": type(optimizer).__name__,
        "learning_rate": float(optimizer.param_groups[0].get("lr", math.nan)),
        "loss": loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__),
        "device": str(trial.device),
        "precision": trial.precision.name,
        "epochs": trial.epochs,
        **{name: str(value) for name, value in options.items() if value != default[name]},
    }


def _package(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"expected the package {name}, got none: pip install 'anydevice[{extra}]'."
        ) from error
