"""The backward graph is compiled by a child process while this one compiles the forward graph."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import select
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

from torch.fx import GraphModule

from anydevice import system
from anydevice.virtual import core
from anydevice.virtual.compiled.names import MissingNameError, ahead_names, inductor_names

# Note [Two graphs at once]
# AOTAutograd has the graph of the backward pass before Inductor compiles that of the forward pass,
# and compiles it at the first backward pass. Here a forked child compiles it meanwhile, and ends.
# What it leaves is an entry in Inductor's cache, which this process finds when it comes to the same
# graph. Nothing else comes back, so that a child that fails or hangs costs time alone. Where
# Inductor gives the forward pass's results other strides than the graph has (convolutions), the
# entry has another key, and is not found.
#
# A child may not use the GPUs of its parent. This one only asks for their properties.

WORTH = 150  # nodes of the forward graph, from which a child gains time
PATIENCE = 3  # times as long as the forward graph took, and the child is given up

Compiler = Callable[[GraphModule, Any], Any]


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What AOTAutograd is given; nothing where it has other names, or takes compilers elsewhere."""
    with suppress(MissingNameError):
        names = ahead_names()
        if {"fw_compiler", "bw_compiler"} <= inspect.signature(
            names.compile_both
        ).parameters.keys():
            yield names.stages, "aot_stage2_autograd", _both(names.compile_both)


def _both(compile_both: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(compile_both)

    def compiled(*arguments: Any, **options: Any) -> Any:
        given = signature.bind(*arguments, **options).arguments
        ahead = Ahead(given["aot_state"].aot_config)
        given["fw_compiler"] = ahead.forward(given["fw_compiler"])
        given["bw_compiler"] = ahead.backward(given["bw_compiler"])
        try:
            return compile_both(**given)
        finally:
            if ahead.is_child:
                os._exit(0)

    return compiled


class Ahead:
    """Two compilers of one program, of which a child runs the second.

    Args:
        config: AOTAutograd's, which says when the backward graph is compiled.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._child: _Child | None = None
        self.is_child = False

    def forward(self, compile: Compiler) -> Compiler:
        """Starts the child, and compiles."""

        def compiled(module: GraphModule, inputs: Any) -> Any:
            parent = os.getpid()
            if not _is_worth(module):
                return compile(module, inputs)
            if pid := fork():
                self._child = _Child(pid)
                return compile(module, inputs)
            self.is_child = True
            object.__setattr__(self._config, "force_non_lazy_backward_lowering", True)  # frozen
            _prepare(parent)
            return _not_compiled

        return compiled

    def backward(self, compile: Compiler) -> Compiler:
        """In the child: compiles, and ends. Else waits for it, and compiles what it has not."""

        def compiled(module: GraphModule, inputs: Any) -> Any:
            if self.is_child:
                _compile_and_end(compile, module, inputs)
            if self._child:
                self._child.wait()
                self._child = None
            return compile(module, inputs)

        return compiled


class _Forking(threading.local):
    only_compiles = False


_forking = _Forking()


def fork() -> int:
    """As os.fork(), for a child that looks at no tensor of the program."""
    _forking.only_compiles = True
    try:
        return system.fork()
    finally:
        _forking.only_compiles = False


def forks() -> bool:
    """Whether this thread is in `fork`: for what os.register_at_fork() calls."""
    return _forking.only_compiles


class _Child:
    def __init__(self, pid: int) -> None:
        self._pid, self._began = pid, monotonic()
        (self._end,) = system.ends([pid])

    def wait(self) -> None:
        """Until it has ended, or for as long as it may take."""
        patience = PATIENCE * (monotonic() - self._began)
        if not select.select([self._end], [], [], patience)[0]:
            os.kill(self._pid, signal.SIGKILL)
        os.close(self._end)
        with suppress(ChildProcessError):  # the program waited for all of its children
            os.waitpid(self._pid, 0)


def _is_worth(module: GraphModule) -> bool:
    config = inductor_names().config
    kept = config.fx_graph_cache and not config.force_disable_caches
    return system.LINUX and kept and len(module.graph.nodes) >= WORTH and system.usable_cores() > 1


def _prepare(parent: int) -> None:
    """In the child."""
    system.end_with(parent)
    logging.disable()
    warnings.simplefilter("ignore")
    gc.disable()
    core.library().anydevice_keep_gpus()


def _not_compiled(*_: Any) -> NoReturn:
    """The forward graph of the child."""
    raise AssertionError("The child's forward graph is not compiled.")


def _compile_and_end(compile: Compiler, module: GraphModule, inputs: Any) -> NoReturn:
    with suppress(BaseException):
        compile(module, inputs)
    os._exit(0)
