"""Each rank's part of every batch: a slice of it, so that together they train on the whole."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from copy import copy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from anydevice.errors import UsageError
from anydevice.train.data.batches import RowOrder, batches_of, tensors_of
from anydevice.train.data.random_state import random_state, set_random_state
from anydevice.train.data.rows import rows_of, sample_count, slices
from anydevice.train.data.samples import samples_of
from anydevice.train.ranks import Ranks

CPU = torch.device("cpu")


class Portion(NamedTuple):
    """A rank's part of a batch; a rank without any gets one row that does not count."""

    batch: Any
    rows: int  # that count
    whole: float  # rows of the batch that the ranks share

    def in_parts(self, parts: int) -> "list[Portion]":
        """The portion in at most `parts`, which are of the same whole batch."""
        size = max(self.rows, 1)
        return [
            Portion(
                rows_of(self.batch, cut, size),
                (cut.stop - cut.start) if self.rows else 0,
                self.whole * (cut.stop - cut.start) / size,
            )
            for cut in slices(size, parts)
        ]


class Portions:
    """Batches of which each rank sees its part, equally many on every rank."""

    def __init__(
        self, batches: Iterable[Any], sizes: Iterable[tuple[int, int]] | None, ranks: Ranks
    ) -> None:
        self.batches, self.sizes, self.ranks = batches, sizes, ranks

    def __len__(self) -> int:
        return len(cast(Sized, self.sizes if isinstance(self.sizes, list) else self.batches))

    def __iter__(self) -> Iterator[Portion]:
        try:
            length: int | None = len(self)
        except TypeError:
            length = None
        lengths = self.ranks.gather(length)
        if len(set(lengths)) > 1:
            raise UsageError(f"expected equally many batches on every rank, got {lengths}.")
        batches = self.batches if length is not None else self._until_one_ends()
        if self.sizes is None:  # the ranks' batches are of one size
            for batch in batches:
                rows = sample_count(batch)
                yield Portion(batch, rows, rows * self.ranks.world)
        else:
            for batch, (rows, whole) in zip(batches, self.sizes, strict=False):
                yield Portion(batch, rows, whole)

    def _until_one_ends(self) -> Iterator[Any]:
        """Batches whose number is not known: the ranks agree on each that there is one."""
        rest, ended = iter(self.batches), object()
        while True:
            batch = next(rest, ended)
            if self.ranks.any(batch is ended):
                break
            yield batch
        if self.ranks.any(batch is not ended):
            raise UsageError(
                "expected equally many batches on every rank, got an end on some ranks before "
                "others: have each rank draw the same batches, of which it gets its slice."
            )


def portions(
    data: Any,
    ranks: Ranks,
    device: torch.device,
    *,
    batch_size: int,
    order: Callable[[int], RowOrder],
    seed: Callable[[], int],
    epoch: Callable[[], int],
) -> tuple[Iterable[Any], Iterable[tuple[int, int]] | None]:
    """As `batches_of`, for this rank's part of each batch; also returns the sizes of the parts."""
    how: dict[str, Any] = {"batch_size": batch_size, "order": order}
    data = samples_of(data)
    if isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size)
    if isinstance(data, DataLoader) and isinstance(data.sampler, DistributedSampler):
        return Redrawn(batches_of(data, device, **how), data.sampler, epoch), None
    streams = isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset)
    if isinstance(data, DataLoader) and data.batch_sampler is not None and not streams:
        rows = Cut(data.batch_sampler, ranks, seed)
        loader = copy(data)
        vars(loader).update(batch_sampler=rows, _iterator=None)
        return batches_of(loader, device, **how), rows.sizes
    samples = _samples(data)
    if samples is not None:
        own = RankRows(samples, batch_size, ranks)
        how = {"batch_size": own.size, "order": own.order(order)}
        return batches_of(data, device, **how), own.sizes
    if not isinstance(data, Iterable):
        return batches_of(data, device, **how), None  # which raises an error that says why
    sliced = Sliced(data, ranks)
    return batches_of(sliced, device, **how), sliced.sizes


def slice_of(whole: int, ranks: Ranks) -> slice:
    """This rank's part of `whole` rows; the first ranks get those that are left over."""
    each, more = divmod(whole, ranks.world)
    start = ranks.rank * each + min(ranks.rank, more)
    return slice(start, start + each + (ranks.rank < more))


class RankRows:
    """This rank's rows of a data set that comes without batches."""

    def __init__(self, samples: int, batch_size: int, ranks: Ranks) -> None:
        if batch_size < ranks.world:
            raise UsageError(
                f"expected a batch_size of at least {ranks.world}, a sample for each rank, got "
                f"{batch_size}."
            )
        self.samples, self.batch_size = samples, batch_size
        self.full, rest = divmod(samples, batch_size)
        self.slice, self.last = slice_of(batch_size, ranks), slice_of(rest, ranks)
        self.size = self.slice.stop - self.slice.start
        self.sizes = [(self.size, batch_size)] * self.full
        if rest:
            self.sizes.append((self.last.stop - self.last.start, rest))

    def order(self, whole: Callable[[int], RowOrder]) -> Callable[[int], RowOrder]:
        """This rank's rows of an epoch, from the order of all rows."""

        def order(samples: int) -> RowOrder:
            draw = whole(samples)

            def own(device: torch.device) -> Tensor:
                rows = draw(device)
                rows = torch.arange(samples, device=device) if rows is None else rows
                end = self.full * self.batch_size
                full = rows[:end].view(self.full, self.batch_size)[:, self.slice].flatten()
                rest = rows[end:]
                last = rest[self.last] if self.sizes[-1][0] else rest[:1]
                return torch.cat([full, last])

            return own

        return order


class Slices:
    """Slices of any batches; their sizes are kept for when they come out of the data path."""

    def __init__(self, batches: Iterable[Any], ranks: Ranks) -> None:
        self.batches, self.ranks = batches, ranks
        self._made: deque[tuple[int, int]] = deque()
        self.sizes = iter(self._made.popleft, None)  # never at its end

    def __len__(self) -> int:
        return len(cast(Sized, self.batches))

    def _next(self, whole: int) -> slice:
        rows = slice_of(whole, self.ranks)
        self._made.append((rows.stop - rows.start, whole))
        return rows if rows.stop > rows.start else slice(0, 1)


class Cut(Slices):
    """A batch sampler whose batches of row numbers are cut; every rank draws the same ones."""

    def __init__(self, batches: Iterable[Any], ranks: Ranks, seed: Callable[[], int]) -> None:
        super().__init__(batches, ranks)
        self.seed = seed

    def __iter__(self) -> Iterator[list[int]]:
        self._made.clear()
        for rows in _drawn_alike(self.batches, self.seed()):
            yield rows[self._next(len(rows))]


class Sliced(Slices):
    """Batches that come from anywhere, cut once they are there."""

    def __iter__(self) -> Iterator[Any]:
        self._made.clear()
        for batch in self.batches:
            size = sample_count(batch)
            yield rows_of(batch, self._next(size), size)


class Redrawn:
    """The batches of a loader with a DistributedSampler, which wants to know the epoch."""

    def __init__(
        self, batches: Iterable[Any], sampler: DistributedSampler[Any], epoch: Callable[[], int]
    ) -> None:
        self.batches, self.sampler, self.epoch = batches, sampler, epoch

    def __len__(self) -> int:
        return len(cast(Sized, self.batches))

    def __iter__(self) -> Iterator[Any]:
        self.sampler.set_epoch(self.epoch())
        return iter(self.batches)


def _samples(data: Any) -> int | None:
    """How many there are, in data that comes without batches."""
    tensors = tensors_of(data)
    if tensors is not None:
        return len(tensors[0]) if tensors[0].dim() else 0
    sized = isinstance(data, Dataset) and not isinstance(data, IterableDataset)
    return len(cast(Sized, data)) if sized else None


def _drawn_alike(batches: Iterable[Any], seed: int) -> Iterator[Any]:
    """What is drawn at random here is the same on every rank; what is drawn elsewhere is not."""
    own = random_state(CPU)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    rest, ended = iter(batches), object()
    while True:
        batch = next(rest, ended)
        alike = random_state(CPU)
        set_random_state(own, CPU)
        if batch is ended:
            return
        yield batch
        own = random_state(CPU)
        set_random_state(alike, CPU)
