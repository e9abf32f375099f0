"""A hollow run in a process of its own, forked from this one, in a sandbox for what it writes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, NoReturn, TextIO, TypeVar, cast
from unittest.mock import patch

import torch

from anydevice.notices import say_once
from anydevice.plan.hollow import sandbox
from anydevice.plan.hollow.failures import CannotPlanError
from anydevice.text import signal_name
from anydevice.virtual import build

T = TypeVar("T")
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def isolated(function: Callable[[], T]) -> T:
    """What the function returns, or raises, in a forked process; what it prints is kept back."""
    _load_what_torch_loads_late()
    ours, theirs = Pipe(duplex=False)
    with (
        TemporaryFile("w+", errors="replace") as said,
        TemporaryDirectory(prefix="anydevice-plan-", ignore_cleanup_errors=True) as folder,
    ):
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            ours.close()
            _answer(function, theirs, said, folder)
        theirs.close()
        try:
            returned, result = _received(ours)
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            ours.close()
            _, status = os.waitpid(child, 0)
        if returned:
            return cast(T, result)
        error = result or _died(status)
        if isinstance(error, CannotPlanError):
            said.seek(0)
            error.details = error.details or said.read()
        raise error


def _load_what_torch_loads_late() -> None:
    """Once, here, instead of in each child: an optimizer's first step imports Dynamo."""
    import torch._dynamo.eval_frame  # noqa: F401

    try:
        build.library()
    except build.BuildError as error:
        raise CannotPlanError(str(error)) from error


def _hide_real_gpus() -> None:
    """CUDA counts the GPUs that it may see once in a process: a plan needs none."""
    with patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
        getattr(torch._C, "_cuda_getDeviceCount", int)()


def _received(connection: Connection) -> tuple[bool, Any]:
    """Whether the function returned, and what; or its error, or None if the process just ended."""
    try:
        while not isinstance(answer := connection.recv(), tuple):
            if answer:
                say_once(answer)
        return cast(tuple[bool, Any], answer)
    except EOFError:
        return False, None


def _answer(
    function: Callable[[], Any], connection: Connection, said: TextIO, folder: str
) -> NoReturn:
    """The child's side: it ends here, whatever the program wanted to do at its exit."""
    try:
        for descriptor in (1, 2):
            os.dup2(said.fileno(), descriptor)
        sys.stdout = sys.stderr = said  # in a notebook the two go elsewhere than to 1 and 2
        gc.freeze()  # what the parent made is not the child's to look through
        connection.send(sandbox.enter(folder, {connection.fileno(), said.fileno(), 0, 1, 2}))
        torch.set_num_threads(1)  # the parent's threads are not here
        _hide_real_gpus()
        result: Any = True, function()
    except BaseException as error:
        result = False, error.with_traceback(None)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(result)
        gc.collect()  # a DataLoader's workers end with it
    finally:
        os._exit(0)


def _died(status: int) -> CannotPlanError:
    code = os.waitstatus_to_exitcode(status)
    how = signal_name(-code) if code < 0 else f"exit code {code}"
    why = ""
    if -code in FAULTS:
        why = ": custom code for GPUs may have used memory that a hollow GPU does not have"
    elif -code == signal.SIGKILL:
        why = ": the system may have stopped it because the host ran out of memory"
    return CannotPlanError(
        f"expected a program that steps an optimizer, got one whose process ended with {how}{why}."
    )
