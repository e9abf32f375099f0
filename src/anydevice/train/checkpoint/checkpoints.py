"""Checkpoints: folders that are there whole or not at all, and checked when they are read."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
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
from anydevice.notices import log, say_once
from anydevice.train.checkpoint.manifest import (
    FORMAT,
    CheckpointError,
    Sum,
    check,
    files_in,
    is_sealed,
    refuse_other_bytes,
    seal,
)
from anydevice.train.checkpoint.state_files import put_together, taken_apart
from anydevice.train.ranks import Ranks

BEFORE_MANIFESTS = "anydevice checkpoint 1"  # read still; its state.json has no checksum
NETWORK, TENSORS, STATE = "network.safetensors", "state.safetensors", "state.json"
SHARDS = "shards"  # a folder instead of the network's file, for the shards of the ranks
NAME = "checkpoint-"
PutNetwork = Callable[[Path], dict[str, Sum]]  # writes into a folder; the sums of its files


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

    def intact(self, ranks: Ranks | None = None) -> Path | None:
        """The newest that is as it was written; newer ones are skipped, and the log says so.

        Several ranks ask together, each reads a share of the files, and all get the same answer.
        """
        paths = sorted(self._there(), key=_number, reverse=True)
        damages: dict[Path, str] = {}
        for path in ranks.told(paths) if ranks else paths:
            if damage := _damage(path, ranks):
                damages[path] = damage
                continue
            for damaged, why in damages.items():
                if ranks is None or ranks.first:
                    log.warning(f"anydevice: {damaged.name} is damaged and is skipped: {why}")
            return Path(path)
        if damages:
            raise CheckpointError(
                f"{next(iter(damages.values()))} No intact checkpoint is left in {self.folder}: "
                "remove it to start again, or name another folder."
            )
        return None

    def set_damaged_aside(self, intact: Path) -> None:
        """Renames those newer than the intact one, so that they do not count among the kept."""
        try:
            for path in self._there():
                if _number(path) > _number(intact):
                    aside = path.with_name(f"damaged-{path.name}")
                    if aside.exists():
                        remove_folder(aside)
                    path.rename(aside)
        except OSError as error:
            say_once(f"anydevice: damaged checkpoints in {self.folder} stay there ({error}).")

    def add(self, state: dict[str, Any], put_network: PutNetwork) -> Path:
        """Writes one, and only then removes those that are no longer kept.

        `put_network` writes into a folder that is given.
        """
        self._clear()
        newest = max(self._there(), key=_number, default=None)
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


def write(path: Path, state: dict[str, Any], put_network: PutNetwork) -> None:
    """Writes a network and its state into a new folder."""
    plain, tensors = taken_apart(state)
    try:
        with whole_folder(path) as folder:
            sums = {**put_network(folder), TENSORS: save_tensors(folder / TENSORS, tensors)}
            write_through(folder / STATE, json.dumps({"format": FORMAT, "state": plain}).encode())
            seal(folder, sums)
    except (OSError, SafetensorError) as error:
        raise unwritten(path, error) from error


def unwritten(path: Path, cause: object) -> CheckpointError:
    """The error of a checkpoint that could not be written."""
    return CheckpointError(
        f"the checkpoint {path} could not be written ({cause}); those before it are intact. "
        "Make room or name another folder, and run again."
    )


def whole_network(network: nn.Module) -> PutNetwork:
    """Writes the network into the folder that is given."""
    return lambda folder: {NETWORK: save_tensors(folder / NETWORK, every_tensor(network))}


def read(path: Path, network: nn.Module) -> dict[str, Any]:
    """Loads the network, unless it is in shards, and returns the state as it was written."""
    record = _record(path)
    with malformed(path):
        state: dict[str, Any] = put_together(record["state"], _load(path / TENSORS))
        if SHARDS in state:
            raise ValueError("shards in another folder")
        if (path / SHARDS).exists():
            return {**state, SHARDS: path}
        weights = _load(path / NETWORK)
        _refuse_another_network(path, network, weights)
        _set_state(network, weights)
        return state


@contextmanager
def malformed(path: Path) -> Iterator[None]:
    """An error inside the block means that the checkpoint there is not one of this program."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"expected a checkpoint of this program in {path}, got one that cannot be taken up "
            f"({type(error).__name__}: {error}): name another folder."
        ) from error


def take_up(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Has the optimizer continue from there."""
    own = [len(group["params"]) for group in optimizer.param_groups]
    kept = [len(group["params"]) for group in state["param_groups"]]
    if own != kept:
        raise CheckpointError(
            f"expected a checkpoint of this optimizer, over groups of {own} parameters, got one "
            f"over groups of {kept}: name another folder."
        )
    optimizer.load_state_dict(state)


def every_tensor(network: nn.Module) -> dict[str, Tensor]:
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
    state = every_tensor(network)
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


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> Sum:
    """Writes tensors from any device; its sum is taken while the disk is still writing."""
    save_file(_on_cpu(tensors), path)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(sync, path)
        found = Sum.of(path)
        written.result()
    return found


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous, and each with memory that no other has, as safetensors wants them."""
    found, taken = {}, set()
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage()
        alone = memory.data_ptr() not in taken and memory.nbytes() == tensor.nbytes
        ready = tensor.device.type == "cpu" and tensor.is_contiguous() and alone
        taken.add(memory.data_ptr())
        found[name] = (
            tensor.detach() if ready else tensor.detach().to("cpu", copy=True).contiguous()
        )
    return found


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"expected {path.name} in {path.parent}, got {error}.") from error


def _damage(path: Path, ranks: Ranks | None) -> str | None:
    """What is wrong with the files of a checkpoint; None of one that is as it was written."""
    rank, world = (ranks.rank, ranks.world) if ranks else (0, 1)
    found = None
    try:
        if is_sealed(path):
            check(path, rank, world)
        elif rank == 0:
            _check_without_manifest(path)
    except CheckpointError as error:
        found = str(error)
    return next(filter(None, ranks.gather(found)), None) if ranks else found


def _check_without_manifest(path: Path) -> None:
    """One of an earlier version: its state.json has the checksums of the other files alone."""
    record, there = _record(path), files_in(path)
    if record["format"] == FORMAT:
        raise CheckpointError(f"expected the manifest of a checkpoint in {path}, got none.")
    if (path / SHARDS).exists():
        raise CheckpointError(
            f"expected shards in safetensors, got those of an earlier version in {path}, which are "
            "pickles, and pickles run code when they are loaded: train again from a whole one."
        )
    with malformed(path):
        sums = record["checksums"]
        for name in (NETWORK, TENSORS):
            if name not in there:
                raise CheckpointError(f"expected {name} in {path}, got {', '.join(there)}.")
            refuse_other_bytes(there[name], Sum(there[name].stat().st_size, index(sums[name])))
    say_once(
        f"anydevice: {path} is of an earlier version, without a manifest: its tensors are checked, "
        f"its {STATE} (step, history, random states, learning rates) is not."
    )


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads((path / STATE).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"expected a checkpoint in {path}, got a folder without a readable {STATE} ({error})."
        ) from error
    if not isinstance(record, dict) or record.get("format") not in (FORMAT, BEFORE_MANIFESTS):
        raise CheckpointError(
            f"expected a file of the format {FORMAT!r}, got another one in {path / STATE}."
        )
    return record


def _number(path: Path) -> int:
    return int(path.name.removeprefix(NAME))
