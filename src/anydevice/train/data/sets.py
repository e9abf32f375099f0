"""The data of a trial: its training, validation and test sets as batches on its device."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from anydevice.errors import UsageError
from anydevice.train.data.batches import batches_of, collated, tensors_of
from anydevice.train.data.images import Standardised, are_bytes, statistics
from anydevice.train.data.portions import Portions, portions
from anydevice.train.ranks import Ranks


@dataclass
class Given:
    """One set as the user gave it; `batch_size` is for data that comes without batches."""

    data: Any
    batch_size: int
    shuffle: bool


@dataclass
class Sets:
    """The sets by name, and the order that each epoch takes the training samples in."""

    device: torch.device
    given: dict[str, Given] = field(default_factory=dict)
    seed: int | None = None
    epoch: int = 0
    made: dict[str, Iterable[Any]] = field(default_factory=dict)
    ranks: Ranks | None = None

    def give(self, name: str, data: Any, batch_size: int, shuffle: bool) -> None:
        """Take one set, instead of one that had this name."""
        self.given[name] = Given(data, batch_size, shuffle)
        self.made.clear()

    def to(self, device: torch.device) -> None:
        """Make batches there from now on."""
        self.device = device
        self.made.clear()

    def share(self, ranks: Ranks) -> int:
        """Give each rank its part of every batch from now on; one seed for the order of all."""
        if self.seed is None:
            train = self.given.get("train")
            if train and isinstance(train.data, Dataset) and tensors_of(train.data) is None:
                _drawn_seed()  # which its DataLoader draws before the order is drawn
            self.seed = _drawn_seed()
        seed: int = ranks.told(self.seed)
        self.seed, self.ranks = seed, ranks
        self.made.clear()
        return seed

    def named(self, name: str) -> Iterable[Any]:
        """The batches of a set."""
        if name not in self.made:
            if name not in self.given:
                raise UsageError(
                    f"expected {name} data, got none: give it by trial.with_generators({name})."
                )
            given = self.given[name]
            over = self.shared if self.ranks else self.over
            self.made[name] = over(given.data, given.batch_size, shuffle=given.shuffle)
        return self.made[name]

    def over(self, data: Any, batch_size: int, *, shuffle: bool = False) -> Iterable[Any]:
        """The batches of any data, as the network is used to them."""
        order = self._shuffled if shuffle else _as_they_come
        batches = batches_of(data, self.device, batch_size=batch_size, order=order)
        return self._standardised(batches, data)

    def shared(self, data: Any, batch_size: int, *, shuffle: bool = False) -> Iterable[Any]:
        """The same, as portions: this rank's part of each batch, or the whole for one process."""
        if self.ranks is None:
            return self.over(data, batch_size, shuffle=shuffle)
        batches, sizes = portions(
            data,
            self.ranks,
            self.device,
            batch_size=batch_size,
            order=self._shuffled if shuffle else _as_they_come,
            seed=lambda: cast(int, self.seed) + self.epoch,
            epoch=lambda: self.epoch,
        )
        return Portions(self._standardised(batches, data), sizes, self.ranks)

    def _standardised(self, batches: Iterable[Any], data: Any) -> Iterable[Any]:
        tensors = tensors_of(collated(data))
        if tensors and are_bytes(tensors[0]):
            return Standardised(batches, *self._statistics(tensors[0]))
        return batches

    def _statistics(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Of the training images; without any, of these."""
        train = self.given.get("train")
        known = tensors_of(collated(train.data)) if train else None
        mean, scale = statistics(known[0] if known and are_bytes(known[0]) else images)
        return mean.to(self.device), scale.to(self.device)

    def _shuffled(self, samples: int) -> Callable[[torch.device], Tensor]:
        """A new order each epoch, from the seed and the epoch alone, drawn where the data is."""

        def order(device: torch.device) -> Tensor:
            if self.seed is None:
                self.seed = _drawn_seed()
            generator = torch.Generator(device).manual_seed(self.seed + self.epoch)
            return torch.randperm(samples, generator=generator, device=device)

        return order


def _drawn_seed() -> int:
    return int(torch.randint(2**48, ()))


def _as_they_come(samples: int) -> Callable[[torch.device], None]:
    return lambda device: None
