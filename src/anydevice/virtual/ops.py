"""The ops that PyTorch has CUDA kernels for, as its own native_functions.yaml names them."""

import hashlib
import re
from collections import defaultdict
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
HOST_INDICES = ("index.Tensor", "index.Tensor_out")

# Kernels that look at devices in another way than torchgen's wrapper and TensorIterator.
OWN_CHECKS = {
    "index_put": ("index_put_", "_index_put_impl_"),
    "masked_fill": (
        "masked_fill.Tensor", "masked_fill_.Tensor", "masked_fill.Scalar", "masked_fill_.Scalar",
    ),
    "fill_index": ("index_fill_.int_Tensor",),
    "where": ("where.self", "where.self_out"),
    "iterator": ("all.all_out", "any.all_out"),
    "no_scalar": ("binary_cross_entropy", "binary_cross_entropy.out"),
    "same_output": ("mse_loss", "mse_loss.out"),
    "gpu_kernel": ("smooth_l1_loss", "smooth_l1_loss.out", "lerp.Tensor", "lerp_.Tensor",
                   "lerp.Tensor_out", "lerp.Scalar", "lerp_.Scalar", "lerp.Scalar_out"),
}  # fmt: skip
OWN_CHECK = {op: check for check, ops in OWN_CHECKS.items() for op in ops}

DTYPES = {
    "whole": "Bool,Byte,Char,Short,Int,Long",
    "integers": "Byte,Char,Short,Int,Long",
    "complex": "ComplexHalf,ComplexFloat,ComplexDouble",
}
REFUSALS = Path(__file__).with_name("refusals.txt")


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
    sources = Path(__file__).read_bytes() + REFUSALS.read_bytes()
    made_by = hashlib.sha256(sources).hexdigest()[:16]
    kept = folder / f"ops-{made_by}.txt"
    try:
        return kept.read_text("utf-8")
    except OSError:
        listed = op_list()
    with suppress(OSError):  # a cache that others filled may be read-only
        write_whole(kept, listed.encode(), mode=MODE)
    return listed


def op_list() -> str:
    """A line for each layout and op: layout, op with overload, device check, name in errors.

    After them, what a card refuses, each line marked with an exclamation mark.
    """
    entries = {entry.op: entry for entry in _entries(_native_functions().read_text("utf-8"))}
    lines = [line for entry in entries.values() for line in _lines(entry, entries)]
    return "\n".join([*lines, *_refusals(entries)])


def _refusals(entries: dict[str, Entry]) -> Iterator[str]:
    """As the library reads them: a line for each overload, dtypes by their own names."""
    overloads = defaultdict(list)
    for op in entries:
        overloads[op.partition(".")[0].removesuffix("_")].append(op)
    for line in REFUSALS.read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, ops, rest = line.split(maxsplit=2)
            first, _, text = rest.partition(" ")
            if kind in ("no-kernel", "no-sparse-kernel"):
                dtypes, _, text = text.partition(" ")
                rest = f"{first} {_spelled_out(dtypes)} {text}"
            elif kind == "wider":
                rest = _spelled_out(first)
            for named in ops.split(","):
                yield from (
                    f"!{kind} {op} {rest}" for op in overloads.get(named, [named.removesuffix(".")])
                )


def _spelled_out(dtypes: str) -> str:
    return ",".join(DTYPES.get(name, name) for name in dtypes.split(","))


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
    name = _native_name(entry) if structured else _dispatcher_name(entry)
    layouts = [layout for layout in LAYOUTS if layout in {**dispatch, **entry.dispatch}]
    if entry.op in WHOLE and "CUDA" not in layouts:
        layouts.append("CUDA")
    for layout in layouts:
        yield f"{layout} {entry.op} {entry.check} wrapper_{layout}_{name}"


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
    if op in OWN_CHECK:
        return OWN_CHECK[op]
    by_iterator = "TensorIterator" in comment or op.startswith("special_")
    return "iterator" if by_iterator else "none"
