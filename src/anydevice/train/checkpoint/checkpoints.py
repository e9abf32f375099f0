"""Checkpoints: folders that are there whole or not at all, and checked when they are read."""

import json
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anydevice.errors import UsageError
from anydevice.files import (
    remove_folder,
    remove_unfinished,
    sync,
    whole_folder,
    write_through,
)
from anydevice.notices import say_once
from anydevice.train.checkpoint.state_files import put_together, taken_apart

FORMAT = "anydevice checkpoint 1"
NETWORK, TENSORS, STATE = "network.safetensors", "state.safetensors", "state.json"
SHARDS = "shards"  # a folder in the place of the network, where the ranks have shares of it
NAME = "checkpoint-"


class CheckpointError(UsageError):
    """A checkpoint cannot be written or is not what was expected; the text says what to do."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run: `every` so many steps besides each epoch, the newest `keep`."""

    folder: Path
    every: int | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if self.keep < 1 or (self.every is not None and self.every < 1):
            raise UsageError(
                "expected to checkpoint every 1 or more steps and to keep 1 or more, got "
                f"every={self.every}, keep={self.keep}."
            )

    def newest(self) -> Path | None:
        """The checkpoint to go on from."""
        return max(self._there(), key=_number, default=None)

    def add(self, state: dict[str, Any], put_network: Callable[[Path], Any]) -> Path:
        """Writes one, and only then removes those that are no longer kept.

        `put_network` writes into a folder that is given.
        """
        self._clear()
        newest = self.newest()
        path = self.folder / f"{NAME}{_number(newest) + 1 if newest else 1:06d}"
        write(path, state, put_network)
        self._clear()
        return path

    def _clear(self) -> None:
        """Removes what is no longer kept; what cannot be is left, as the run does not need it."""
        try:
            remove_unfinished(self.folder)
            for old in sorted(self._there(), key=_number)[: -self.keep]:
                remove_folder(old)
        except OSError as error:
            say_once(f"anydevice: old checkpoints in {self.folder} cannot be removed ({error}).")

    def _there(self) -> list[Path]:
        return [path for path in self.folder.glob(f"{NAME}*") if path.name[len(NAME) :].isdecimal()]


def write(path: Path, state: dict[str, Any], put_network: Callable[[Path], Any]) -> None:
    """Writes a network and whatever else there is, as a folder that was not there before."""
    plain, tensors = taken_apart(state)
    try:
        with whole_folder(path) as folder:
            put_network(folder)
            _save(folder / TENSORS, tensors)
            names = [name for name in (NETWORK, TENSORS) if (folder / name).exists()]
            sums = {name: _checksum(folder / name) for name in names}
            record = {"format": FORMAT, "checksums": sums, "state": plain}
            write_through(folder / STATE, json.dumps(record).encode())
    except (OSError, SafetensorError) as error:
        raise unwritten(path, error) from error


def unwritten(path: Path, cause: object) -> CheckpointError:
    """The error of a checkpoint that could not be written."""
    return CheckpointError(
        f"the checkpoint {path} could not be written ({cause}); those before it are intact. "
        "Make room or name another folder, and run again."
    )


def whole_network(network: nn.Module) -> Callable[[Path], None]:
    """Writes the network into the folder that is given."""
    return lambda folder: _save(folder / NETWORK, whole_state(network))


def read(path: Path, network: nn.Module) -> dict[str, Any]:
    """Loads the network, if it is there as a whole, and gives the rest as it was written."""
    try:
        record = json.loads((path / STATE).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"expected a checkpoint in {path}, got a folder without a readable {STATE} ({error})."
        ) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise CheckpointError(
            f"expected a file of the format {FORMAT!r}, got another one in {path / STATE}."
        )
    tensors = _load(path / TENSORS, record["checksums"])
    sharded = (path / SHARDS).exists()
    if not sharded:
        weights = _load(path / NETWORK, record["checksums"])
        _refuse_another_network(path, network, weights)
        _set_state(network, weights)
    state: dict[str, Any] = put_together(record["state"], tensors)
    return state | ({SHARDS: path} if sharded else {})


def take_up(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Has the optimizer go on from there."""
    own = [len(group["params"]) for group in optimizer.param_groups]
    kept = [len(group["params"]) for group in state["param_groups"]]
    if own != kept:
        raise CheckpointError(
            f"expected a checkpoint of this optimizer, over groups of {own} parameters, got one "
            f"over groups of {kept}: name another folder."
        )
    optimizer.load_state_dict(state)


@contextmanager
def asked_to_end(notice: Callable[[], None]) -> Iterator[None]:
    """Calls `notice` on SIGTERM instead of dying of it; in the main thread, where that can be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: notice())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: not set from Python


def whole_state(network: nn.Module) -> dict[str, Tensor]:
    """The state_dict, and the buffers that it leaves out but the next step reads."""
    state = {**dict(network.named_buffers()), **network.state_dict()}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"expected a network whose state is tensors, got {type(value).__name__} at {name}: "
                "make it a buffer."
            )
    return state


def _set_state(network: nn.Module, weights: dict[str, Tensor]) -> None:
    network.load_state_dict(weights, strict=False)
    beside = dict(network.named_buffers()).keys() - network.state_dict().keys()
    for name in beside:
        network.get_buffer(name).copy_(weights[name])


def _refuse_another_network(path: Path, network: nn.Module, weights: dict[str, Tensor]) -> None:
    state = whole_state(network)
    if any(map(is_lazy, state.values())):
        return  # its shapes are what the checkpoint says
    own = {name: list(tensor.shape) for name, tensor in state.items()}
    refuse_another(path, own, {name: list(tensor.shape) for name, tensor in weights.items()})


def refuse_another(path: Path, own: dict[str, list[int]], held: dict[str, list[int]]) -> None:
    """Refuses what holds tensors of other names or shapes than the network's own."""
    if own == held:
        return
    names = [*own, *held.keys() - own.keys()]
    name = next(name for name in names if own.get(name) != held.get(name))
    raise CheckpointError(
        f"expected a checkpoint of this network, where {name} is {own.get(name, 'not there')}, got "
        f"one of another in {path}, where it is {held.get(name, 'not there')}: name another folder."
    )


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    copies = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
    save_file(copies, path)
    sync(path)


def _load(path: Path, sums: dict[str, int]) -> dict[str, Tensor]:
    try:
        found = _checksum(path)
    except OSError as error:
        raise CheckpointError(f"expected {path.name} in {path.parent}, got {error}.") from error
    if found != sums[path.name]:
        raise CheckpointError(
            f"expected {path} as it was written (checksum {sums[path.name]:08x}), got other bytes "
            f"({found:08x}): remove {path.parent}, and the run goes on from the one before."
        )
    return load_file(path)


def _number(path: Path) -> int:
    return int(path.name.removeprefix(NAME))


def _checksum(path: Path) -> int:
    found = 0
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found = zlib.crc32(part, found)
    return found
