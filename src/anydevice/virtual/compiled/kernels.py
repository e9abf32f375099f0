"""Triton's kernels on virtual GPUs: what a launch does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from math import inf
from typing import Any

from anydevice.notices import say_once
from anydevice.virtual import machine
from anydevice.virtual.compiled import driver, front_end, hollow_triton, starting
from anydevice.virtual.compiled.launches import unheard
from anydevice.virtual.compiled.names import MissingNameError, triton_names

# Note [Triton on a virtual GPU]
# Triton asks its driver for the card, compiles a kernel for it, and gives the binary and the
# arguments to the driver's launcher. Only the launch needs a card: so a driver is put in place that
# knows the virtual GPU (driver.py).
#
# On GPUs with values, JITFunction.run has the compiler read the kernel (front_end.py), whose errors
# are those that a card's user gets, interprets it (interpreter.py), and gives back a kernel that is
# compiled once something is asked of it (`Interpreted`). A kernel that was compiled (`warmup`) is
# interpreted by the launcher.
#
# On hollow GPUs it is compiled for the card, so that what it asks of a multiprocessor is known, and
# the launcher reports it (hollow_triton.py).

FIRST = (
    "triton.autotune takes the first configuration that the card has room for: on virtual GPUs "
    "there is nothing to time."
)


@dataclass
class _State:
    """What Triton does just now."""

    tuning: bool = False  # a configuration is tried: its kernel is read, and not run


_state = _State()


@contextmanager
def _tuning() -> Iterator[None]:
    before, _state.tuning = _state.tuning, True
    try:
        yield
    finally:
        _state.tuning = before


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
        _forget_another_card(self)
        if warmup or not here or here.hollow:
            return compile_and_launch(self, *arguments, grid=grid, warmup=warmup, **named)
        for hook in self.pre_run_hooks:
            hook(*arguments, **named)

        with front_end.read_only(self):
            kernel = _noted(self, compile_and_launch, arguments, {"grid": grid, **named})
        if not _state.tuning:
            _interpreter().launch(self, arguments, named, grid)
        return kernel

    return run


def _forget_another_card(kernel: Any) -> None:
    """Triton keeps a GPU's kernels by its number, which another machine's GPU may have had."""
    device, active = driver.current(), triton_names().driver.active
    if device in kernel.device_caches and isinstance(active, driver.Driver):
        _, _, target, *_ = kernel.device_caches[device]
        if target != active.get_current_target():
            del kernel.device_caches[device]


def _noted(
    kernel: Any, read: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Has the kernel read; an error of the compiler names its line in the file, too."""
    try:
        return read(kernel, *arguments, warmup=True, **named)
    except triton_names().CompilationError as refused:
        line = getattr(refused.node, "lineno", 1)
        refused.add_note(f"{kernel.__name__} at {_interpreter().line_in(kernel, line)}")
        raise


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
        vars(self)["do_bench"] = _once
        with unheard(), _tuning():
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
