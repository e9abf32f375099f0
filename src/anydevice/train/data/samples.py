"""Data of others as sets: samples that are dictionaries, Hugging Face's data sets, DataModules."""

from collections import UserDict
from collections.abc import Mapping, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import SUPPORTED_NODES, register_pytree_node
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import default_collate

from anydevice.errors import UsageError


class Samples(Dataset[Any]):
    """A sequence of samples, such as a list of dictionaries or a data set of Hugging Face."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(cast(Sized, self.data))

    def __getitem__(self, row: int) -> Any:
        return self.data[row]


def samples_of(data: Any) -> Any:
    """The data as a Dataset, if it is a sequence of single samples; else as it is.

    Samples are dictionaries, or tuples with a plain number, such as a tensor and its class. A list
    of batches that are dictionaries is one of batches: all of a batch's values are tensors with as
    many rows.
    """
    indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    others = (Tensor, Mapping, tuple, str, DataLoader)
    if not indexed or isinstance(data, others) or not len(data):
        return data
    if isinstance(data, Dataset):
        return data
    first = data[0]
    if isinstance(first, Mapping):
        return data if _is_batch(first) else Samples(data)
    pair = isinstance(first, tuple) and any(isinstance(part, (int, float)) for part in first)
    return Samples(data) if pair else data


def _is_batch(sample: Mapping[str, Any]) -> bool:
    values = list(sample.values())
    rows = {len(v) if isinstance(v, Tensor) and v.dim() else None for v in values}
    return len(rows) == 1 and None not in rows


def collate(samples: list[Any]) -> Any:
    """As PyTorch's, with lists of numbers as tensors, since such rows come from data sets."""
    if not isinstance(samples[0], Mapping):
        return default_collate(samples)
    return {name: _column(name, [sample[name] for sample in samples]) for name in samples[0]}


def _column(name: str, values: list[Any]) -> Any:
    if isinstance(values[0], str) or values[0] is None:
        return values
    if not isinstance(values[0], list):
        return default_collate(values)
    try:
        return torch.tensor(values)
    except (ValueError, TypeError) as error:
        lengths = sorted({len(value) for value in values})
        raise UsageError(
            f"expected samples whose {name} has one length, got lengths {lengths}: pad them, or "
            "give a DataLoader with a collate_fn that does."
        ) from error


def make_known(batch: Any) -> bool:
    """Has PyTorch's trees look into a UserDict, such as a tokenizer's batch; whether it is one."""
    kind = type(batch)
    if not isinstance(batch, UserDict):
        return False
    if kind not in SUPPORTED_NODES:
        register_pytree_node(kind, _flatten, lambda values, context: _unflatten(values, context))
    return True


def _flatten(batch: Any) -> tuple[list[Any], Any]:
    return list(batch.values()), (type(batch), list(batch.keys()), vars(batch))


def _unflatten(values: Any, context: Any) -> Any:
    kind, names, attributes = context
    made = kind.__new__(kind)
    vars(made).update({**attributes, "data": dict(zip(names, values, strict=True))})
    return made


def makes_batches(data: Any) -> bool:
    """Whether a stream of WebDataset puts its samples together itself."""
    stages, whole = getattr(data, "pipeline", None), False
    for stage in stages if isinstance(stages, list) else []:
        name = getattr(getattr(stage, "f", None), "__name__", "")
        if isinstance(stage, DataLoader):
            whole = stage.batch_size is not None or makes_batches(stage.dataset)
        elif "batched" in name:
            whole = "unbatched" not in name
    return whole


# ---- several sets in one ----

SETS = {
    "train": ("train",),
    "val": ("validation", "val", "valid", "dev", "eval"),
    "test": ("test",),
}


def loaded(module: Any) -> dict[str, Any]:
    """The sets of a DataModule, as Lightning's and d2l's, or of a dictionary of sets, by name.

    A module is prepared as its framework's trainer would. Other data has none.
    """
    if isinstance(module, Mapping):
        return _of_a_dictionary(module)
    if not callable(getattr(module, "train_dataloader", None)) or isinstance(module, type):
        return {}
    for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
        method = getattr(module, name, None)
        if callable(method):
            method(*arguments)
    found = {}
    for name in ("train", "val", "test"):
        try:
            loader = getattr(module, f"{name}_dataloader", lambda: None)()
        except NotImplementedError:  # a set that it does not have
            continue
        if loader is not None:
            found[name] = loader
    return found


def _of_a_dictionary(sets: Mapping[str, Any]) -> dict[str, Any]:
    """Such as Hugging Face's DatasetDict: train, validation, test."""
    if "train" not in sets or isinstance(sets["train"], Tensor):
        return {}
    named = {name: next((key for key in keys if key in sets), None) for name, keys in SETS.items()}
    return {name: sets[key] for name, key in named.items() if key is not None}
