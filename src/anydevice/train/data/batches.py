"""The data path: batches on the device, from tensors, a Dataset, a DataLoader or any iterable."""

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torch.utils.data.dataloader import default_collate

from anydevice.devices.load import load_of
from anydevice.devices.move import move
from anydevice.errors import UsageError
from anydevice.train.data.samples import (
    Samples,
    collate,
    make_known,
    makes_batches,
    samples_of,
)

# Data up to this share of the free memory stays on the device; the remainder is for the training.
RESIDENT_SHARE = 0.5

RowOrder = Callable[[torch.device], Tensor | None]  # the rows of an epoch; None: as they come


class Resident:
    """Tensors that live on the device, cut into batches there in an order drawn there."""

    def __init__(self, tensors: tuple[Tensor, ...], batch_size: int, order: RowOrder) -> None:
        self.tensors = tensors
        self.batch_size = batch_size
        self.order = order

    def __len__(self) -> int:
        return -(-len(self.tensors[0]) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        rows = self.order(self.tensors[0].device)
        if rows is None:
            yield from zip(*(torch.split(t, self.batch_size) for t in self.tensors), strict=True)
            return
        for chosen in torch.split(rows, self.batch_size):
            yield tuple(tensor.index_select(0, chosen) for tensor in self.tensors)


class Taken:
    """A DataLoader over tensors: the rows that its sampler names, taken at once.

    The same batches as the loader's own, which would fetch each sample and stack them.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.tensors = cast(TensorDataset, loader.dataset).tensors

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        # The loader draws a seed for its workers before its sampler draws.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        for rows in cast(Iterable[list[int]], self.loader.batch_sampler):
            yield [tensor[rows] for tensor in self.tensors]


class Persistent:
    """A DataLoader whose workers stay: each epoch draws a seed for them, as if they were new.

    The loader itself draws one in its first epoch alone, and a resumed run has its first epoch
    later: it would draw one number more, and then another order of the samples.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.loader._iterator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        return iter(self.loader)


class Sent:
    """Batches copied to the device on a separate stream.

    The step before computes meanwhile: nothing here waits, and the training loop does not either.
    """

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        self.batches = batches
        self.device = device

    def __len__(self) -> int:
        return len(cast(Sized, self.batches))

    def __iter__(self) -> Iterator[Any]:
        side = torch.Stream(self.device)
        for batch in self.batches:
            with side:
                there = move(_pinned(batch), self.device, non_blocking=True)
            stream = torch.accelerator.current_stream(self.device)
            stream.wait_stream(side)
            for tensor in tensors_in(there):
                tensor.record_stream(stream)  # its memory is not given away before it was used
            yield there


def batches_of(
    data: Any, device: torch.device, *, batch_size: int, order: Callable[[int], RowOrder]
) -> Iterable[Any]:
    """Batches on the device, by the shortest way that this kind of data allows.

    `order(samples)` gives the function that draws an epoch's order, for data without one.
    """
    data = samples_of(data)
    tensors = tensors_of(data)
    if tensors is not None:
        _refuse_uneven(tensors)
        if _fits(tensors, device):
            tensors = tuple(tensor.to(device) for tensor in tensors)
            return Resident(tensors, batch_size, order(len(tensors[0])))
        return _sent(Resident(tensors, batch_size, order(len(tensors[0]))), device)
    if isinstance(data, IterableDataset):
        whole = makes_batches(data)
        data = DataLoader(
            data, None if whole else batch_size, collate_fn=None if whole else collate
        )
    if isinstance(data, DataLoader):
        return _sent(_seeded_each_epoch(data), device)
    if isinstance(data, Dataset) and hasattr(data, "__getitem__"):
        return _sent(_loaded(data, batch_size, order(len(cast(Sized, data)))), device)
    if not isinstance(data, Iterable):
        raise UsageError(
            "expected data as a tuple of tensors, a Dataset, a DataLoader or an iterable of "
            f"batches, got {type(data).__name__}."
        )
    return _sent(data, device)


def tensors_of(data: Any) -> tuple[Tensor, ...] | None:
    """The tensors that data consists of: `(x, y)`, one tensor, arrays, tables, a TensorDataset.

    Of a Subset of such data, its rows.
    """
    if type(data) is Subset:
        whole = tensors_of(data.dataset)
        rows = torch.as_tensor(data.indices)
        return tuple(tensor[rows.to(tensor.device)] for tensor in whole) if whole else None
    held = data.tensors if _holds_tensors(data) else data
    parts = held if isinstance(held, tuple) else (held,)
    found = tuple(map(_as_tensor, parts))
    return found if found and all(isinstance(part, Tensor) for part in found) else None


def _as_tensor(part: Any) -> Any:
    """Arrays of NumPy, tables and columns of pandas and polars, and lists of numbers as tensors."""
    if isinstance(part, np.ndarray):
        return torch.from_numpy(part)
    if hasattr(part, "to_numpy"):
        return torch.from_numpy(np.array(part.to_numpy()))  # which may be read-only
    number = part
    while isinstance(number, list) and number:
        number = number[0]
    return torch.tensor(part) if number is not part and isinstance(number, (int, float)) else part


def collated(data: Any) -> Any:
    """What a DataLoader's batches are made of, where they are the samples' tensors as they are."""
    plain = isinstance(data, DataLoader) and data.collate_fn is default_collate
    return data.dataset if plain else data


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Every tensor of a batch."""
    return (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))


def _sent(batches: Iterable[Any], device: torch.device) -> Iterable[Any]:
    return batches if device.type in ("cpu", "meta") else Sent(batches, device)


def _fits(tensors: tuple[Tensor, ...], device: torch.device) -> bool:
    if device.type in ("cpu", "meta"):
        return True
    missing = sum(tensor.nbytes for tensor in tensors if tensor.device != device)
    return missing <= RESIDENT_SHARE * load_of(device).free


def _seeded_each_epoch(loader: DataLoader[Any]) -> Iterable[Any]:
    if _over_tensors(loader):
        return Taken(loader)
    return Persistent(loader) if loader.persistent_workers else loader


def _over_tensors(loader: DataLoader[Any]) -> bool:
    plain = type(loader) is DataLoader and loader.collate_fn is default_collate
    return plain and _holds_tensors(loader.dataset) and loader.batch_sampler is not None


def _holds_tensors(data: Any) -> bool:
    """Whether this is a TensorDataset whose samples are its rows, with nothing done to them."""
    return isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__


def _loaded(data: Dataset[Any], batch_size: int, order: RowOrder) -> DataLoader[Any]:
    class Sampler(torch.utils.data.Sampler[int]):
        def __len__(self) -> int:
            return len(cast(Sized, data))

        def __iter__(self) -> Iterator[int]:
            rows = order(torch.device("cpu"))
            return iter(range(len(self)) if rows is None else rows.tolist())

    how: Any = collate if isinstance(data, Samples) else None
    return DataLoader(data, batch_size, sampler=Sampler(), collate_fn=how)


def _pinned(batch: Any) -> Any:
    """The batch in memory that can be copied from while the program continues."""

    make_known(batch)

    def pin(tensor: Tensor) -> Tensor:
        pageable = tensor.device.type == "cpu" and not tensor.is_pinned()
        return tensor.pin_memory() if pageable else tensor

    return tree_map_only(Tensor, pin, batch)


def _refuse_uneven(tensors: tuple[Tensor, ...]) -> None:
    lengths = [len(tensor) if tensor.dim() else 0 for tensor in tensors]
    if len(set(lengths)) > 1:
        raise UsageError(f"expected tensors of one length, got lengths {lengths}.")
    if lengths[0] == 0:
        raise UsageError("expected samples to train on or evaluate, got none: the data is empty.")
