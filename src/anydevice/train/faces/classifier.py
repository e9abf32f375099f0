"""A trial with the face of scikit-learn: `fit`, `predict`, `predict_proba`, `score`.

It needs the package scikit-learn, and can be used wherever that takes a classifier: in a Pipeline,
in `cross_val_score`, in a `GridSearchCV`.
"""

import copy
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from anydevice.devices.choose import DeviceLike
from anydevice.errors import UsageError
from anydevice.train.recipes import OptimizerLike
from anydevice.train.trial import Trial

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:  # said when a classifier is made
    BaseEstimator, ClassifierMixin = type("BaseEstimator", (), {}), None
MISSING = ClassifierMixin is None
BASES: Any = (BaseEstimator,) if MISSING else (ClassifierMixin, BaseEstimator)

Network = nn.Module | Callable[[int, int], nn.Module]


class Classifier(*BASES):  # type: ignore[misc]
    """A classifier of scikit-learn that trains a network on any device.

    Args:
        network: A function of the numbers of features and of classes that returns a network, or a
            network with an output for each class, of which `fit` trains a copy; None for two
            layers of 100.
        optimizer: As in `Trial`.
        lr: The learning rate of an optimizer that is given by name; None for its own.
        epochs: How many epochs to train.
        batch_size: The size of a batch.
        device: As in `ad.pick`.
        random_state: The seed of weights, dropout and the order of samples.
        verbose: Whether to show progress.

    Attributes:
        classes_: The classes.
        network_: The network that was trained.
        history_: The history of its training.

    Raises:
        UsageError: Without scikit-learn.

    Example:
        >>> classifier = ad.Classifier(epochs=20, random_state=0).fit(x, y)
        >>> classifier.predict(x[:5]).shape
        (5,)
    """

    def __init__(
        self,
        network: Network | None = None,
        *,
        optimizer: OptimizerLike = "adam",
        lr: float | None = None,
        epochs: int = 50,
        batch_size: int = 100,
        device: DeviceLike = "auto",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        if MISSING:
            raise UsageError(
                "expected the package scikit-learn for ad.Classifier, got none: pip install "
                "scikit-learn."
            )
        self.network = network
        self.optimizer = optimizer
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Trains a network on samples and their classes.

        Args:
            X: A row for each sample.
            y: Their classes: numbers, or text.

        Returns:
            The classifier.

        Raises:
            ValueError: If the data is not of numbers, or has no classes.
        """
        X, y = validate_data(self, X, y, dtype=np.float32)  # noqa: N806
        check_classification_targets(y)
        self.classes_, targets = np.unique(y, return_inverse=True)
        seed = self._seed()
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            made = self._network(X.shape[1], max(len(self.classes_), 2))
            rate: Any = {} if self.lr is None else {"rates": {"*": self.lr}}
            trial = Trial(made, self.optimizer, "cross_entropy", metrics=["loss", "accuracy"])
            trial.with_options(seed=seed, **rate).to(self.device)
            trial.with_generators((X, targets.astype(np.int64)), batch_size=self.batch_size)
            trial.run(self.epochs, verbose=self.verbose)
        self.network_, self.history_, self.n_iter_ = trial.network, trial.history, trial.epoch
        return self

    def predict_proba(self, X: Any) -> Any:  # noqa: N803
        """The probability of each class, a row for each sample."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float32, reset=False)  # noqa: N806
        trial = Trial(self.network_, None).to(self.device)
        likely = trial.predict(torch.from_numpy(X)).float().softmax(1).numpy()
        return likely[:, : len(self.classes_)]

    def predict(self, X: Any) -> Any:  # noqa: N803
        """The likeliest class of each sample."""
        likely = self.predict_proba(X)
        return self.classes_[likely.argmax(1)]

    def _network(self, features: int, classes: int) -> nn.Module:
        if self.network is None:
            layers = nn.Linear(features, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()
            return nn.Sequential(*layers, nn.Linear(100, classes))
        if isinstance(self.network, nn.Module):
            return copy.deepcopy(self.network)
        return self.network(features, classes)

    def _seed(self) -> int | None:
        if self.random_state is None or isinstance(self.random_state, (int, np.integer)):
            return None if self.random_state is None else int(self.random_state)
        return int(self.random_state.randint(2**31))  # a RandomState of NumPy
