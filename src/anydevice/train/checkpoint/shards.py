"""Checkpoints that every rank writes its share of, by torch.distributed.checkpoint.

They are read by any number of ranks, also by one process that has the whole network.
"""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from anydevice.train.checkpoint.checkpoints import (
    SHARDS,
    CheckpointError,
    refuse_another,
    unwritten,
    whole_state,
)
from anydevice.train.ranks import Ranks

INDEX = ".metadata"
# What it consists of. It is a pickle, and a pickle may call anything; these are its own parts.
OWN = "torch.distributed.checkpoint.metadata"
BESIDE = {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
}


class Shards:
    """The parts of a trial that are shared out over the ranks; `ranks` is None for one process."""

    def __init__(
        self, network: nn.Module, loss: object, optimizer: Optimizer | None, ranks: Ranks | None
    ) -> None:
        self.network, self.optimizer, self.ranks = network, optimizer, ranks
        self.loss = loss if isinstance(loss, nn.Module) else None
        self.whole = nn.ModuleDict({"network": network})
        if self.loss is not None:
            self.whole["loss"] = self.loss

    def write(self, folder: Path) -> None:
        """All ranks write into one folder."""
        group = self.ranks.host if self.ranks else None
        try:
            save(self._tensors(), checkpoint_id=folder / SHARDS, process_group=group)
        except CheckpointException as error:
            raise unwritten(folder, _causes(error)) from error

    def read(self, path: Path, groups: Any) -> None:
        """Takes up what is there, whatever part of it this process has."""
        reader = _Reader(path / SHARDS)
        tensors = self._tensors()
        refuse_another(path, _shapes(tensors["network"]), _shapes_in(reader.read_metadata()))
        alone = self.ranks is None
        group = self.ranks.host if self.ranks else None
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is meant so
                load(tensors, storage_reader=reader, process_group=group, no_dist=alone)
        except CheckpointException as error:
            raise CheckpointError(
                f"expected the shards of a checkpoint in {path / SHARDS}, got {_causes(error)}: "
                f"remove {path}, and the run goes on from the one before."
            ) from error
        if self.optimizer:  # the network's own tensors have been written into
            state: Any = {"state": tensors["optimizer"], "param_groups": groups}
            set_optimizer_state_dict(self.whole, self.optimizer, state)

    def groups(self) -> Any:
        """What the optimizer has beside tensors: learning rates and the like, by names."""
        if self.optimizer is None:
            return None
        return get_optimizer_state_dict(self.whole, self.optimizer)["param_groups"]

    def _tensors(self) -> dict[str, Any]:
        tensors: dict[str, Any] = {"network": whole_state(self.network)}
        if self.loss is not None:
            tensors["loss"] = self.loss.state_dict()
        if self.optimizer:
            tensors["optimizer"] = get_optimizer_state_dict(self.whole, self.optimizer)["state"]
        return tensors


class _Reader(FileSystemReader):
    """Reads shards whose index is nothing but an index."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / INDEX
        try:
            found: Metadata = _Index(io.BytesIO(path.read_bytes())).load()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            sentence = f"expected the index of shards in {path}, got {error}."
            raise CheckpointError(sentence) from error
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module in (OWN, "torch") else None
        own = isinstance(found, type) and found.__module__ == OWN
        if own or isinstance(found, torch.dtype):
            return found
        if (module, name) in BESIDE:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a pickle that asks for {module}.{name}")


def _shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _shapes_in(index: Metadata) -> dict[str, list[int]]:
    return {
        name.removeprefix("network."): list(entry.size)
        for name, entry in index.state_dict_metadata.items()
        if name.startswith("network.") and isinstance(entry, TensorStorageMetadata)
    }


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"{text[0]} on rank {rank}" for rank, text in error.failures.items())
