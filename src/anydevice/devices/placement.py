"""Which parameter lives where: every parameter and buffer of a module, summed for each device."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from rich.text import Text
from torch import nn

from anydevice.errors import UsageError
from anydevice.tables import Shown, Table
from anydevice.text import size_text

_MOVABLE = torch.Tensor | nn.Module


@dataclass(frozen=True)
class Resident:
    """A parameter or buffer; `shared_with` names the earlier one that is the same tensor."""

    name: str
    kind: str
    device: str
    dtype: str
    shape: tuple[int, ...] | None
    bytes: int
    shared_with: str | None = None


@dataclass(frozen=True, repr=False)
class Placement(Shown):
    """Where a module lives. Shows itself in a terminal, a notebook, and as JSON."""

    residents: tuple[Resident, ...]
    unregistered: tuple[str, ...]  # plain attributes with tensors, which Module.to leaves behind

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes on each device; a shared tensor counts once."""
        sums: dict[str, int] = {}
        for resident in self.residents:
            sums[resident.device] = sums.get(resident.device, 0) + resident.bytes
        return sums

    @property
    def is_split(self) -> bool:
        """Whether the module lives on more than one device."""
        return len(self.bytes) > 1

    @property
    def summary(self) -> str:
        """One line: the device it is on, or those it is split over, and the size of each part."""
        parts = [f"{device} {size_text(size)}" for device, size in self.bytes.items()]
        if not parts:
            return "no parameters or buffers"
        return f"split over {', '.join(parts)}" if self.is_split else f"all on {parts[0]}"

    def to_json(self) -> str:
        """The same as JSON, for a program."""
        sums = {"is_split": self.is_split, "bytes": self.bytes}
        return json.dumps({**sums, **asdict(self)}, indent=2)

    def _shown(self) -> Iterator[Table | Text]:
        yield Text(self.summary, style="bold yellow" if self.is_split else "bold")
        yield self._table()
        for line in self._warnings():
            yield Text(line, style="yellow")

    def _table(self) -> Table:
        columns = ("name", "kind", "device", "dtype", "shape", "size")
        table = Table(columns, right=("size",))
        for r in self.residents:
            shape = "not yet known" if r.shape is None else "×".join(map(str, r.shape)) or "scalar"
            size = f"= {r.shared_with}" if r.shared_with else size_text(r.bytes)
            table.rows.append((r.name, r.kind, r.device, r.dtype, shape, size))
        return table

    def _warnings(self) -> list[str]:
        return [
            f"{name} is a plain attribute, which Module.to leaves behind: "
            "register_buffer a tensor, put layers in a ModuleList."
            for name in self.unregistered
        ]


def placement(module: nn.Module) -> Placement:
    """Where each parameter and buffer of a module lives, with sizes.

    Args:
        module: Any torch.nn.Module.

    Returns:
        A `Placement`, which prints as a table. It also names tensors and layers that `Module.to`
        would leave behind, since they are plain attributes.

    Raises:
        UsageError: It is not a module.

    >>> print(placement(network))  # doctest: +SKIP
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(module).__name__}.")
    first: dict[int, str] = {}
    residents = []
    for name, tensor, kind in _tensors(module):
        shared_with = first.setdefault(id(tensor), name)
        shared = shared_with if shared_with != name else None
        residents.append(_resident(name, tensor, kind, shared))
    return Placement(tuple(residents), tuple(_unregistered(module)))


def _unregistered(module: nn.Module) -> Iterator[str]:
    """Tensors and layers kept as plain attributes, alone or in a plain container."""
    for path, child in module.named_modules():
        for name, value in vars(child).items():
            items = list(value.values()) if type(value) is dict else value
            held = items if type(items) in (list, tuple) else [value]
            if not name.startswith("_") and any(isinstance(item, _MOVABLE) for item in held):
                yield f"{path}.{name}".lstrip(".")


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, str]]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, parameter, "parameter"
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield name, buffer, "buffer"


def _resident(name: str, tensor: torch.Tensor, kind: str, shared: str | None) -> Resident:
    unset = nn.parameter.is_lazy(tensor)
    return Resident(
        name=name,
        kind=kind,
        device=str(tensor.device),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=None if unset else tuple(tensor.shape),
        bytes=0 if unset or shared else _bytes(tensor),
        shared_with=shared,
    )


def _bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's values; for a sparse one those of its indices, too."""
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = tensor.crow_indices() if by_row else tensor.ccol_indices()
    inner = tensor.col_indices() if by_row else tensor.row_indices()
    return outer.nbytes + inner.nbytes + tensor.values().nbytes
