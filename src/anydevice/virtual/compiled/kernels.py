"""Triton's kernels on virtual GPUs: what a launch does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from math import inf
from typing import Any
from unittest.mock import patch

from anydevice.notices import say_once
from anydevice.virtual import machine
from anydevice.virtual.compiled import driver, hollow_triton, starting
from anydevice.virtual.compiled.launches import unheard
from anydevice.virtual.compiled.names import MissingNameError, triton_names

# Note [Triton on a virtual GPU]
# Triton asks its driver for the card, compiles a kernel for it, and gives the binary and the
# arguments to the driver's launcher. Only the launch needs a card: so a driver is put in place that
# knows the virtual GPU (driver.py).
#
# On GPUs with values, JITFunction.run does not compile: it interprets (interpreter.py), and gives
# back a kernel that is compiled once something is asked of it (`Interpreted`). A kernel that was
# compiled nevertheless (`warmup`) is interpreted by the launcher. What fails is compiled, too: if
# the compiler refuses the kernel, its error is the one that a card's user gets.
#
# On hollow GPUs it is compiled for the card, so that what it asks of a multiprocessor is known, and
# the launcher reports it (hollow_triton.py).

FIRST = (
    "triton.autotune takes the first configuration that the card has room for: on virtual GPUs "
    "there is nothing to time."
)


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What Triton is given, once it is imported."""
    try:
        names = triton_names()
    except MissingNameError as error:
        say_once(f"Triton's kernels do not run on virtual GPUs: {error}.")
        return
    yield names.driver, "_active", driver.Driver(Launcher)
    yield names.JITFunction, "run", _run(names.JITFunction.run)
    yield names.JITFunction, "__call__", _called
    yield names.Autotuner, "_bench", _first_that_fits(names.bench)
    yield names.compiler, "max_shared_mem", _most_shared  # Triton's own keeps the first card's
    yield names.Compiled, "_init_handles", _known_to_its_launcher(names.handles)
    yield names.cache, "triton_key", starting.triton_key


def _run(compile_and_launch: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(compile_and_launch)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        here = machine.enabled()
        if warmup or not here or here.hollow:
            return compile_and_launch(self, *arguments, grid=grid, warmup=warmup, **named)
        for hook in self.pre_run_hooks:
            hook(*arguments, **named)

        def compiled() -> Any:
            with patch.object(self, "pre_run_hooks", []):
                return compile_and_launch(self, *arguments, grid=grid, warmup=True, **named)

        try:
            _interpreter().launch(self, arguments, named, grid)
        except _interpreter().KernelError as error:
            _refused(compiled, error)
            raise
        return Interpreted(compiled)

    return run


def _refused(compile_it: Callable[[], Any], error: Exception) -> None:
    """Raises the compiler's own error, if it has one, with the kernel's line."""
    try:
        compile_it()
    except triton_names().CompilationError as refused:
        refused.add_note(str(error))
        raise refused from error
    except Exception:
        return


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


def _called(self: Any, *arguments: Any, **named: Any) -> Any:
    return _interpreter().called(self, *arguments, **named)


def _interpreter() -> Any:
    """Imported at the first launch."""
    from anydevice.virtual.compiled import interpreter

    return interpreter


def _first_that_fits(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's Autotuner times each configuration; nothing here has a time."""

    @wraps(bench)
    def first(self: Any, *arguments: Any, config: Any, **named: Any) -> Any:
        say_once(FIRST)
        if isinstance(self.nargs, Found):
            return [inf] * 3
        here = machine.enabled()
        if not here or not here.hollow:
            times: Any = [1.0] * 3
        else:
            vars(self)["do_bench"] = _once
            with unheard():
                times = bench(self, *arguments, config=config, **named)
        if times[0] != inf:
            self.nargs = Found(self.nargs)
        return times

    return first


def _most_shared(device: int) -> int:
    return driver.Utils().get_device_properties(device)["max_shared_mem"]


def _known_to_its_launcher(make: Callable[..., None]) -> Callable[..., None]:
    """A compiled kernel makes its launcher from less than it has itself."""

    @wraps(make)
    def made(self: Any) -> None:
        make(self)
        if isinstance(self._run, Launcher):
            self._run.kernel = self

    return made


class Found(dict[str, Any]):
    """The arguments of a call whose configuration is known: Triton forgets them after the call."""


def _once(call: Callable[[], object], **_: Any) -> list[float]:
    call()
    return [1.0] * 3


class Launcher:
    """Launches a kernel that Triton has compiled."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.source, self.metadata = source, metadata
        self.kernel: Any = None  # the CompiledKernel

    def __call__(
        self,
        x: int,
        y: int,
        z: int,
        stream: int,
        function: int,
        packed: Any,
        described: Any,
        enter: Any,
        leave: Any,
        *arguments: Any,
    ) -> None:
        """What a compiled kernel's `run` calls."""
        if enter is not None:
            enter(described)
        here = machine.enabled()
        if here and here.hollow:
            hollow_triton.launch(self.kernel, (x, y, z), arguments)
        else:
            _interpreter().launch(self.source.fn, arguments, {}, (x, y, z))
        if leave is not None:
            leave(described)
