"""Checkpoints of hollow tensors: files of the right size, with holes for the bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import IO, Any
from unittest.mock import patch

import torch

SMALL = 1 << 16  # bytes: such storages are read, since some have values


class _Unread:
    """A hollow storage that was to be read."""


class _Sparse:
    """A zip file of torch.save's."""

    def __init__(self, zip_file: Any) -> None:
        self._zip_file = zip_file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._zip_file, name)

    def write_record(self, name: str, data: Any, size: int) -> None:
        if isinstance(data, _Unread):
            self._zip_file.write_record_metadata(name, size)
        else:
            self._zip_file.write_record(name, data, size)


@contextmanager
def sparse() -> Iterator[None]:
    """Inside the block torch.save and safetensors leave out the bytes; a Trial begins anew."""
    import safetensors.torch

    from anydevice.train.checkpoint.checkpoints import Checkpoints

    serialization: Any = torch.serialization
    storages: Any = torch.UntypedStorage
    save, write, cpu = torch.save, serialization._save, storages.cpu

    def unread(self: torch.UntypedStorage) -> Any:
        return _Unread() if self.is_cuda and self.nbytes() > SMALL else cpu(self)

    def _save(thing: object, zip_file: Any, *options: Any) -> None:
        with patch.object(storages, "cpu", unread):
            write(thing, _Sparse(zip_file), *options)

    def saved(obj: object, f: Any, *options: Any, **named: Any) -> None:
        named["_use_new_zipfile_serialization"] = True
        if not isinstance(f, str | os.PathLike):
            return save(obj, f, *options, **named)
        with open(f, "wb") as file:
            return save(obj, file, *options, **named)

    with ExitStack() as stack:
        for owner, name, function in (
            (torch, "save", saved),
            (serialization, "save", saved),
            (serialization, "_save", _save),
            (safetensors.torch, "save_file", save_file),
            (Checkpoints, "add", _nothing),
            (Checkpoints, "intact", _nothing),
        ):
            stack.enter_context(patch.object(owner, name, function))
        yield


def _nothing(*arguments: Any, **options: Any) -> None:
    return None


def save_file(
    tensors: Mapping[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """As safetensors.torch.save_file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _type(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            _write(tensor, file)
        file.truncate()


def _write(tensor: torch.Tensor, file: IO[bytes]) -> None:
    if tensor.is_cuda and tensor.nbytes > SMALL:
        file.seek(tensor.nbytes, os.SEEK_CUR)
    else:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        file.write(flat.view(torch.uint8).numpy().tobytes())


@cache
def _type(dtype: torch.dtype) -> str:
    """As safetensors calls it."""
    import safetensors.torch

    empty = safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    return str(json.loads(empty[8:])[""]["dtype"])
