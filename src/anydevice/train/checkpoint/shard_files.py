"""Where torch.distributed.checkpoint puts shards, and finds them again: safetensors and JSON.

PyTorch plans which rank writes and reads what; its own files are pickles, and pickles run code when
they are loaded. Here each rank writes one safetensors file, and the first an index of all parts:

    {"format": "anydevice shards 1", "tensors": {"network.weight": {"shape": [4, 2], "dtype":
        "torch.float32", "parts": [{"offset": [0, 0], "shape": [2, 2], "file": "00000.safetensors",
        "key": "network.weight 0,0"}, …]}}}
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from operator import index
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from anydevice.files import sync, write_through
from anydevice.train.checkpoint.checkpoints import save_tensors
from anydevice.train.checkpoint.manifest import CheckpointError, Sum, files_in

DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
FORMAT = "anydevice shards 1"
INDEX = "index.json"


class Written(NamedTuple):
    """Where a rank has put a part, and what its file is like."""

    file: str
    key: str
    sum: Sum


class ShardWriter(StorageWriter):
    """Writes a safetensors file for each rank; `sums` has those of all files, on the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sums: dict[str, Sum] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one save to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Every rank writes alike."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:  # noqa: D102
        self.folder.mkdir(exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Each rank gets the name of its file."""
        return [replace(p, storage_data=f"{r:05d}.safetensors") for r, p in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:  # noqa: D102
        tensors: dict[str, Any] = {}
        path = self.folder / plan.storage_data
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                raise CheckpointError(
                    f"expected a state of tensors, got another thing at {item.index.fqn}: it could "
                    "only be kept as a pickle, and pickles run code when they are loaded."
                )
            tensors[_key(item.index)] = planner.resolve_data(item)
        found = save_tensors(path, tensors)
        places = [(item.index, Written(path.name, _key(item.index), found)) for item in plan.items]
        future: Future[list[WriteResult]] = Future()
        future.set_result([WriteResult(part, 0, written) for part, written in places])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The first rank writes the index."""
        written = {result.index: result.storage_data for part in results for result in part}
        tensors = {}
        for name, entry in metadata.state_dict_metadata.items():
            assert isinstance(entry, TensorStorageMetadata)  # write_data has refused others
            tensors[name] = {
                "shape": entry.size,
                "dtype": str(entry.properties.dtype),
                "parts": [
                    _part(chunk, written[MetadataIndex(name, chunk.offsets)])
                    for chunk in entry.chunks
                    if prod(chunk.sizes)
                ],
            }
        self.sums = {f"{self.folder.name}/{to.file}": to.sum for to in written.values()}
        text = json.dumps({"format": FORMAT, "tensors": tensors})
        write_through(self.folder / INDEX, text.encode())
        sync(self.folder)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: D102
        return True


class Place(NamedTuple):
    """Where a part lies."""

    path: Path
    key: str
    shape: torch.Size
    dtype: torch.dtype


class ShardReader(StorageReader):
    """Reads what the writer wrote; an index that could not be its work is refused."""

    def __init__(self, folder: Path) -> None:
        self.index: dict[str, TensorStorageMetadata] = {}
        self.places: dict[MetadataIndex, Place] = {}
        path, there = folder / INDEX, files_in(folder)
        try:
            record = json.loads(path.read_bytes())
            if record["format"] != FORMAT:
                raise ValueError(f"another format than {FORMAT!r}")
            for name, held in record["tensors"].items():
                self.index[name] = _entry(name, held)
                self.places |= _places(name, self.index[name], held["parts"], there)
        except Exception as error:
            raise CheckpointError(
                f"expected the index of shards in {path}, got {type(error).__name__}: {error}."
            ) from error

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is kept from one load to the next."""

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        """The index, as PyTorch's planner knows it: there are tensors in it and nothing else."""
        return Metadata(dict(self.index))

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Each rank has read the index for itself."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:  # noqa: D102
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:  # noqa: D102
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copies the rows that this rank needs into its tensors."""
        with ExitStack() as stack:
            files: dict[Path, Any] = {}
            for item in plan.items:
                place = self.places[item.storage_index]
                if place.path not in files:
                    files[place.path] = stack.enter_context(safe_open(place.path, framework="pt"))
                part = _read(files[place.path], place)
                for dim, (start, length) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    part = part.narrow(dim, start, length)
                planner.resolve_tensor(item).detach().copy_(part)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: D102
        return True


def _key(part: MetadataIndex) -> str:
    return f"{part.fqn} {','.join(map(str, part.offset or ()))}"


def _part(chunk: ChunkStorageMetadata, to: Written) -> dict[str, Any]:
    return {"offset": chunk.offsets, "shape": chunk.sizes, "file": to.file, "key": to.key}


def _entry(name: str, held: Mapping[str, Any]) -> TensorStorageMetadata:
    """One tensor of the index, whose parts make it up."""
    shape, dtype = _size(held["shape"]), DTYPES[held["dtype"]]
    chunks = [ChunkStorageMetadata(_size(p["offset"]), _size(p["shape"])) for p in held["parts"]]
    for chunk in chunks:
        rows = zip(chunk.offsets, chunk.sizes, shape, strict=True)
        if any(start + length > whole for start, length, whole in rows):
            raise ValueError(f"a part of {name!r} that reaches beyond it")
    if len({chunk.offsets for chunk in chunks}) < len(chunks):
        raise ValueError(f"two parts of {name!r} at one place")
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(shape):
        raise ValueError(f"parts of {name!r} that do not make it up")
    return TensorStorageMetadata(TensorProperties(dtype=dtype), shape, chunks)


def _places(
    name: str,
    entry: TensorStorageMetadata,
    parts: Iterable[Mapping[str, Any]],
    there: Mapping[str, Path],
) -> dict[MetadataIndex, Place]:
    places = {}
    for chunk, part in zip(entry.chunks, parts, strict=True):
        if part["file"] not in there:
            raise ValueError(f"a part in {part['file']!r}, which is no file of this folder")
        place = Place(there[part["file"]], part["key"], chunk.sizes, entry.properties.dtype)
        places[MetadataIndex(name, chunk.offsets)] = place
    return places


def _size(numbers: Iterable[Any]) -> torch.Size:
    size = torch.Size(map(index, numbers))
    if any(number < 0 for number in size):
        raise ValueError(f"a size of {list(size)}")
    return size


def _read(file: Any, place: Place) -> Tensor:
    """A part of a tensor; it stays on the disk until it is copied."""
    tensor: Tensor = file.get_tensor(place.key)
    if tensor.shape != place.shape or tensor.dtype != place.dtype:
        raise CheckpointError(
            f"expected {place.key!r} in {place.path} as {list(place.shape)} of {place.dtype}, got "
            f"{list(tensor.shape)} of {tensor.dtype}."
        )
    return tensor
