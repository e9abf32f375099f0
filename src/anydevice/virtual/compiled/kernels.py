"""Triton's kernels on virtual GPUs: what a launch does there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from anydevice.notices import say_once
from anydevice.virtual import machine
from anydevice.virtual.compiled import driver
from anydevice.virtual.compiled.names import MissingNameError, triton_names

# Note [Triton on a virtual GPU]
# Triton asks its driver for the card, compiles a kernel for it, and gives the binary and the
# arguments to the driver's launcher. Only the launch needs a card: so a driver is put in place that
# knows the virtual GPU (driver.py).
#
# On GPUs with values, JITFunction.run does not compile: it interprets (interpreter.py). A kernel
# that was compiled nevertheless (`warmup`) is interpreted by the launcher.

FIRST = "triton.autotune takes the first configuration: on virtual GPUs there is nothing to time."


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


def _run(compile_and_launch: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(compile_and_launch)
    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        here = machine.enabled()
        if warmup or not here:
            return compile_and_launch(self, *arguments, grid=grid, warmup=warmup, **named)
        for hook in self.pre_run_hooks:
            hook(*arguments, **named)
        _interpreter().launch(self, arguments, named, grid)
        return None

    return run


def _called(self: Any, *arguments: Any, **named: Any) -> Any:
    return _interpreter().called(self, *arguments, **named)


def _interpreter() -> Any:
    """Imported at the first launch."""
    from anydevice.virtual.compiled import interpreter

    return interpreter


def _first_that_fits(bench: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's Autotuner times each configuration; nothing here has a time."""

    @wraps(bench)
    def first(self: Any, *arguments: Any, config: Any, **named: Any) -> list[float]:
        say_once(FIRST)
        return [1.0] * 3

    return first


class Launcher:
    """Launches a kernel that Triton has compiled."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.source, self.metadata = source, metadata

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
        _interpreter().launch(self.source.fn, arguments, {}, (x, y, z))
        if leave is not None:
            leave(described)
