"""Triton's compiler reads a kernel before it is interpreted, and refuses what it has to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from unittest.mock import patch

from anydevice.virtual.compiled import driver
from anydevice.virtual.compiled.names import triton_names

# Note [What is read before it is interpreted]
# Python knows more than Triton's language: `break`, a variable that changes its type in a loop, a
# global variable. A kernel with those can be interpreted, and fails on a card. So JITFunction.run
# compiles a kernel as ever when it meets new types of arguments, but to Triton's first
# representation alone, which takes some hundredths of a second and finds these errors. Everything
# else (LLVM, PTX, the binary) follows once something is asked of the kernel.


class Interpreted:
    """What a launch gives back: its kernel as compiled for the card, once something is asked."""

    def __init__(self, compile_it: Callable[[], Any]) -> None:
        self._compile_it = compile_it

    @cached_property
    def _kernel(self) -> Any:
        kernel = self._compile_it()
        kernel._init_handles()
        return kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Any:
        return self._kernel[grid]


@contextmanager
def read_only(kernel: Any) -> Iterator[None]:
    """Inside the block the JITFunction's `run` reads the kernel, and compiles it later."""
    kernel.device_caches[driver.current()]  # makes `compile`, if it is the first launch
    with patch.object(kernel, "pre_run_hooks", []), patch.object(kernel, "compile", _read):
        yield


def _read(source: Any, target: Any, options: dict[str, Any], **rest: Any) -> Interpreted:
    compiler = triton_names().compiler
    backend = compiler.make_backend(target)
    parsed = backend.parse_options({**options, **source.parse_options()})
    context = compiler.ir.context()
    compiler.ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(parsed)
    try:
        source.make_ir(target, parsed, functions, backend.get_module_map(), context)
    except Exception as error:
        compiler.filter_traceback(error)
        raise
    threads = driver.WARP * parsed.num_warps
    if threads > driver.MOST_THREADS:
        raise triton_names().OutOfResources(threads, driver.MOST_THREADS, "threads")
    return Interpreted(lambda: compiler.compile(source, target=target, options=options, **rest))
