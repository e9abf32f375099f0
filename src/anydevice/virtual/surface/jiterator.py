"""torch.cuda.jiterator: kernels given as C++ text, which the host's compiler takes as well."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from anydevice import system
from anydevice.virtual import build, cache
from anydevice.virtual.surface.streams import cuda_error

TYPES = {
    "bool": "bool",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float32": "float",
    "float64": "double",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}

SOURCE = """
#include <algorithm>
#include <cmath>
#include <cstdint>
{complex}
using std::max;
using std::min;
{code}
extern "C" __attribute__((visibility("default")))
void launch(int64_t count, void** in, void** out, {type}* extra) {{
  for (int64_t i = 0; i < count; ++i) {{
    {statement};
  }}
}}
"""


def names() -> dict[str, Any]:
    """What torch._C calls it."""
    return {"_cuda_jiterator_compile_and_launch_kernel": launch}


def _check_devices(tensors: Sequence[torch.Tensor]) -> None:
    """As TensorIterator does for these kernels: all on one GPU, numbers too."""
    common = next((t.device for t in tensors if getattr(t, "is_cuda", False)), torch.device("cpu"))
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device != common:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{common} and {tensor.device}!"
            )


def launch(
    code: str,
    name: str,
    by_reference: bool,
    outputs: int,
    tensors: Sequence[torch.Tensor],
    extra: dict[str, Any],
) -> Any:
    """Calls the function `name` of `code` on each element, after the usual promotion of types."""
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    _check_devices(tensors)
    computed, promoted = elementwise_dtypes(
        *tensors, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )
    broadcast: Any = torch.broadcast_tensors
    given = [tensor.to(computed).contiguous() for tensor in broadcast(*tensors)]
    made = [torch.empty_like(given[0]) for _ in range(outputs)]
    if not _hollow():
        source = _source(code, name, by_reference, (len(given), outputs, len(extra)), computed)
        values = [torch.tensor(value).to(computed).reshape(1) for value in extra.values()]
        scalars = torch.cat(values) if values else torch.empty(0)
        _compiled(source)(
            ctypes.c_int64(given[0].numel()),
            _pointers(given),
            _pointers(made),
            ctypes.c_void_p(scalars.data_ptr()),
        )
    results = tuple(tensor.to(promoted) for tensor in made)
    return results if len(results) > 1 else results[0]


def _source(
    code: str, name: str, by_reference: bool, counts: tuple[int, int, int], dtype: torch.dtype
) -> str:
    kind = TYPES[str(dtype).removeprefix("torch.")]
    inputs, outputs, extras = counts
    arguments = [f"(({kind}*)in[{k}])[i]" for k in range(inputs)]
    arguments += [f"extra[{k}]" for k in range(extras)]
    results = [f"(({kind}*)out[{k}])[i]" for k in range(outputs)]
    if by_reference:
        statement = f"{name}<{kind}>({', '.join([*arguments, *results])})"
    else:
        statement = f"{results[0]} = {name}<{kind}>({', '.join(arguments)})"
    complex_header = "#include <c10/util/complex.h>" if dtype.is_complex else ""
    return SOURCE.format(complex=complex_header, code=code, type=kind, statement=statement)


@functools.cache
def _compiled(source: str) -> Any:
    kept = cache.folder("jiterator")
    command = [*build.compiler(), *build.FLAGS, "-shared", f"-I{build.headers()}"]
    made_from = " ".join((*command, torch.__version__, platform.machine(), source))
    path = kept / system.library_file(hashlib.sha256(made_from.encode()).hexdigest()[:16])
    if not path.exists():
        with TemporaryDirectory(dir=kept) as folder:
            unfinished = os.path.join(folder, path.name)
            done = subprocess.run(
                [*command, "-x", "c++", "-", "-o", unfinished],
                input=source,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(
                    "the host's compiler, which stands in for CUDA's on virtual GPUs, "
                    f"did not take this kernel:\n{done.stderr}"
                )
            cache.keep_from_others(Path(unfinished))
            os.replace(unfinished, path)
    return ctypes.CDLL(str(path)).launch


def _hollow() -> bool:
    from anydevice.virtual.machine import enabled

    machine = enabled()
    return machine is not None and machine.hollow


def _pointers(tensors: Sequence[torch.Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    addresses = [tensor.data_ptr() for tensor in tensors]
    if any(tensor.numel() and not tensor.data_ptr() for tensor in tensors):  # a tensor's wrapper
        raise cuda_error(700, "an illegal memory access was encountered", "cudaErrorIllegalAddress")
    return (ctypes.c_void_p * len(addresses))(*addresses)
