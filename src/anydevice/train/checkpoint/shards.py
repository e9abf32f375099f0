"""Checkpoints that every rank writes its share of, by torch.distributed.checkpoint.

Any number of ranks can read them, and so can one process that has the whole network.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from anydevice.train.checkpoint.checkpoints import (
    SHARDS,
    every_tensor,
    refuse_another,
    unwritten,
)
from anydevice.train.checkpoint.manifest import CheckpointError, Sum
from anydevice.train.checkpoint.shard_files import ShardReader, ShardWriter
from anydevice.train.ranks import Ranks


class Shards:
    """The parts of a trial that are sharded over the ranks; `ranks` is None for one process."""

    def __init__(
        self, network: nn.Module, loss: object, optimizer: Optimizer | None, ranks: Ranks | None
    ) -> None:
        self.network, self.optimizer, self.ranks = network, optimizer, ranks
        self.loss = loss if isinstance(loss, nn.Module) else None
        self.whole = nn.ModuleDict({"network": network})
        if self.loss is not None:
            self.whole["loss"] = self.loss

    def write(self, folder: Path) -> dict[str, Sum]:
        """All ranks write into one folder; on the first, the sums of what they wrote."""
        writer = ShardWriter(folder / SHARDS)
        try:
            with _alone():
                save(self._tensors(), storage_writer=writer, **self._ranks())
        except CheckpointException as error:
            raise unwritten(folder, _causes(error)) from error
        return writer.sums

    def read(self, path: Path, groups: Any) -> None:
        """Takes up what is there, as far as this process has it."""
        reader = ShardReader(path / SHARDS)
        tensors = self._tensors()
        refuse_another(path, _shapes(tensors["network"]), _shapes_in(reader.index))
        try:
            with _alone():
                load(tensors, storage_reader=reader, **self._ranks())
        except CheckpointException as error:
            raise CheckpointError(
                f"expected the shards of a checkpoint in {path / SHARDS}, got {_causes(error)}: "
                "name another folder."
            ) from error
        if self.optimizer:  # the network's own tensors have been written into
            state = tensors["optimizer"]
            for parameter, plain in groups["plain"].items():
                state.setdefault(parameter, {}).update(plain)
            whole: Any = {"state": state, "param_groups": groups["groups"]}
            set_optimizer_state_dict(self.whole, self.optimizer, whole)

    def groups(self) -> dict[str, Any] | None:
        """What the optimizer has besides tensors, by names: learning rates and the like."""
        if self.optimizer is None:
            return None
        state: Any = get_optimizer_state_dict(self.whole, self.optimizer)
        return {"groups": state["param_groups"], "plain": _split(state["state"])[1]}

    def _tensors(self) -> dict[str, Any]:
        tensors: dict[str, Any] = {"network": every_tensor(self.network)}
        if self.loss is not None:
            tensors["loss"] = self.loss.state_dict()
        if self.optimizer:
            state: Any = get_optimizer_state_dict(self.whole, self.optimizer)["state"]
            tensors["optimizer"] = _split(state)[0]
        return tensors

    def _ranks(self) -> dict[str, Any]:
        return {"process_group": self.ranks.host if self.ranks else None, "no_dist": not self.ranks}


@contextmanager
def _alone() -> Iterator[None]:
    """PyTorch warns in one process that there are no others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _split(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What an optimizer keeps for each parameter: tensors, and what is not."""
    tensors: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for parameter, held in state.items():
        for name, value in held.items():
            has_tensors = any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
            (tensors if has_tensors else plain).setdefault(parameter, {})[name] = value
    return tensors, plain


def _shapes(tensors: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in tensors.items()}


def _shapes_in(index: dict[str, TensorStorageMetadata]) -> dict[str, list[int]]:
    return {
        name.removeprefix("network."): list(entry.size)
        for name, entry in index.items()
        if name.startswith("network.")
    }


def _causes(error: CheckpointException) -> str:
    return "; ".join(f"{text[0]} on rank {rank}" for rank, text in error.failures.items())
