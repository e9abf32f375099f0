"""The data of a trial: its training, validation and test sets as batches on its device."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
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


class Limited:
    """So many batches in a pass: the first ones, or all of them and some again."""

    def __init__(self, batches: Iterable[Any], steps: int) -> None:
        self.batches, self.steps = batches, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        done = 0
        while done < self.steps:
            before = done
            for batch in islice(self.batches, self.steps - done):
                done += 1
                yield batch
            if done == before:  # none are left
                return


@dataclass
class Sets:
    """The sets by name, and the order that each epoch takes the training samples in."""

    device: torch.device
    given: dict[str, Given] = field(default_factory=dict)
    seed: int | None = None
    epoch: int = 0
    made: dict[str, Iterable[Any]] = field(default_factory=dict)
    ranks: Ranks | None = None
    steps: dict[str, int] = field(default_factory=dict)  # of a pass, where it is not all

    def limit(self, name: str, steps: int) -> None:
        """Have so many batches in a pass over a set: fewer than there are, or some again."""
        self.steps[name] = steps
        self.made.clear()

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
            given = self.of(name)
            over = self.shared if self.ranks else self.over
            batches = over(given.data, given.batch_size, shuffle=given.shuffle)
            steps = self.steps.get(name)
            self.made[name] = Limited(batches, steps) if steps else batches
        return self.made[name]

    def of(self, name: str) -> Given:
        """A set as it was given."""
        if name not in self.given:
            raise UsageError(
                f"expected {name} data, got none: give it by trial.with_generators({name}=…)."
            )
        return self.given[name]

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
