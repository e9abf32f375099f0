"""The ops that PyTorch has CUDA kernels for, as its own native_functions.yaml names them."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from anydevice.files import write_whole
from anydevice.virtual.cache import MODE

LAYOUTS = ("CUDA", "SparseCUDA", "SparseCsrCUDA", "NestedTensorCUDA", "QuantizedCUDA")

# Composite on CUDA too, but made of other parts there: taken whole, the CPU's bits are kept.
WHOLE = (
    "convolution",
    "conj_physical_",
    "mode",
    "mode.values",
    "_validate_sparse_coo_tensor_args",  # by way of a CUDA kernel that is not an op
)

# CUDA takes indices that are still on the host.
HOST_INDICES = ("index.Tensor", "index.Tensor_out", "index_put_", "_index_put_impl_")

MASKED_FILL = ("masked_fill.Tensor", "masked_fill_.Tensor")


@dataclass
class Entry:
    """One `- func:` of native_functions.yaml, as far as dispatch goes."""

    op: str
    has_out: bool = False
    dispatch: dict[str, str] = field(default_factory=dict)
    delegate: str | None = None
    structured: bool = False
    check: str = "common"


def kept_op_list(folder: Path) -> str:
    """The list, kept in a folder: reading PyTorch's file takes longer than all else at start."""
    made_by = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    kept = folder / f"ops-{made_by}.txt"
    try:
        return kept.read_text("utf-8")
    except OSError:
        listed = op_list()
    with suppress(OSError):  # a cache that others filled may be read-only
        write_whole(kept, listed.encode(), mode=MODE)
    return listed


def op_list() -> str:
    """A line for each layout and op: layout, op with overload, device check, name in errors."""
    entries = {entry.op: entry for entry in _entries(_native_functions().read_text("utf-8"))}
    return "\n".join(line for entry in entries.values() for line in _lines(entry, entries))


def _native_functions() -> Path:
    spec = find_spec("torchgen")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "expected torchgen next to torch, as in PyTorch's wheels; reinstall torch."
        )
    return Path(spec.origin).parent / "packaged/ATen/native/native_functions.yaml"


def _lines(entry: Entry, entries: dict[str, Entry]) -> Iterator[str]:
    structured = entry.structured or entry.delegate is not None
    dispatch = entries[entry.delegate].dispatch if entry.delegate else entry.dispatch
    method = "wrapper_CUDA_" + (_native_name(entry) if structured else _dispatcher_name(entry))
    layouts = [layout for layout in LAYOUTS if layout in {**dispatch, **entry.dispatch}]
    if entry.op in WHOLE and "CUDA" not in layouts:
        layouts.append("CUDA")
    for layout in layouts:
        yield f"{layout} {entry.op} {entry.check} {method}"


def _native_name(entry: Entry) -> str:
    """As torchgen.api.native.name: addmm, addmm_, addmm_out_out."""
    name, _, overload = entry.op.partition(".")
    return "_".join(filter(None, (name + "_out" * entry.has_out, overload)))


def _dispatcher_name(entry: Entry) -> str:
    """As torchgen's wrapper_kernel_sig: _index_select, out_index_select_out."""
    name, _, overload = entry.op.partition(".")
    return f"{overload}_{name}" + "_out" * entry.has_out


def _entries(text: str) -> Iterator[Entry]:
    """Reads the part of YAML that the file is written in; PyYAML is not among torch's needs."""
    entry = Entry("")
    section = ""
    for line in text.splitlines():
        if line.startswith("- func: "):
            if entry.op:
                yield entry
            op, _, arguments = line.removeprefix("- func: ").partition("(")
            keyword_only = arguments.partition("->")[0].partition("*,")[2]
            entry = Entry(op.strip(), has_out="!)" in keyword_only)
            entry.check = "convolution" if entry.op == "convolution" else "common"
            section = ""
        elif found := re.match(r"  (\w+):\s*(.*)", line):
            section, value = found.groups()
            _set(entry, section, value)
        elif section == "dispatch" and (found := re.match(r"    ([\w, ]+):\s*(\w+)", line)):
            keys, kernel = found.groups()
            entry.dispatch.update(dict.fromkeys(re.split(r",\s*", keys), kernel))
    yield entry


def _set(entry: Entry, section: str, value: str) -> None:
    value, _, comment = value.partition("#")
    if section == "structured_delegate":
        entry.delegate = value.strip()
    elif section == "structured":
        entry.structured = value.strip() == "True"
    elif section == "ufunc_inner_loop":  # add: one source for CPU and CUDA
        entry.dispatch["CUDA"] = "ufunc"
    elif section == "device_check":
        entry.check = _unchecked(entry.op, comment)


def _unchecked(op: str, comment: str) -> str:
    """Who looks at the devices where torchgen's wrapper does not."""
    if "foreach" in op or "foreach" in comment:
        return "foreach"
    if op in HOST_INDICES:
        return "indices"
    if op in MASKED_FILL:
        return "masked_fill"
    by_iterator = "TensorIterator" in comment or op.startswith("special_")
    return "iterator" if by_iterator else "none"
