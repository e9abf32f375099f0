"""Imports torch once, then forks for each program that it is sent: see `tests/forked.py`.

Each program has a process that waits for it and reports how it ended. The program's own process
returns from `serve`, and the program is the last thing that its `__main__` does: so it ends as any
Python process does, at its last line, by an exception or by `sys.exit`, and through `atexit`.

What Python does after `atexit` is left out: it would free each object that torch has made, which
takes 0.4 s, more than most programs. A program that is about the end itself asks for all of it.
"""
# ruff: noqa: E402

import atexit
import builtins
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

code: int | None = None  # with which the program ends, once that is known


def _leave() -> None:
    if code is not None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


atexit.register(_leave)  # first, so that it comes after all others

import torch._dynamo.eval_frame  # noqa: F401  an optimizer imports it at its first step

import anydevice.cli
import anydevice.plan.hollow.run
import anydevice.sweep.processes.worker
import anydevice.train.trial
import anydevice.virtual  # noqa: F401

MANY = 32  # descriptors
ABOVE = 1000  # what a program wants as its descriptors


def serve(descriptor: int) -> Callable[[], object]:
    """Returns in the process of a program, with the program; ends when the client has ended."""
    connection = socket.socket(fileno=descriptor)
    gc.collect()
    gc.freeze()  # a program's collections need not look through all that was imported here
    while request := _received(connection):
        described, (answer, *descriptors) = request
        if os.fork() == 0:
            connection.close()
            os.setpgid(0, 0)  # a program's own signals to its group are not for the server
            program = os.fork()
            if program == 0:
                os.close(answer)
                return _prepared(described, descriptors)
            _report(program, answer, descriptors)
        for given in (answer, *descriptors):
            os.close(given)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    size = connection.recv(4)
    if not size:
        return None
    text, descriptors, *_ = socket.recv_fds(connection, int.from_bytes(size), MANY)
    while len(text) < int.from_bytes(size):
        text += connection.recv(int.from_bytes(size) - len(text))
    return json.loads(text), descriptors


def _report(program: int, answer: int, descriptors: list[int]) -> NoReturn:
    """The program's number, and how it ended once it has."""
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(answer, program.to_bytes(8))
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with suppress(BrokenPipeError):
        os.write(answer, status.to_bytes(8, signed=True))
    os._exit(0)


def _prepared(described: dict[str, Any], descriptors: list[int]) -> Callable[[], object]:
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, ABOVE) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for target, descriptor in zip(described["descriptors"], moved, strict=True):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if described["session"]:
        os.setsid()
    os.chdir(described["cwd"])
    os.environ.clear()
    os.environ.update(described["env"])
    if "triton" in sys.modules:
        atexit.register(gc.unfreeze)  # what is frozen at the end is a leak to Triton, which says so
    program = _program(*described["words"])
    return program if described["whole"] else lambda: _with_its_code(program)


def _with_its_code(program: Callable[[], object]) -> None:
    global code
    try:
        program()
        code = 0
    except SystemExit as exit:
        code = 0 if exit.code is None else exit.code & 255 if isinstance(exit.code, int) else 1
        raise
    except Exception:
        code = 1
        raise


def _program(first: str, *rest: str) -> Callable[[], object]:
    """What `python FIRST REST` would run, with `sys.argv` and `sys.path` as it would have them."""
    if first == "-m":
        name, *arguments = rest
        sys.argv[:], sys.path[0] = [name, *arguments], os.getcwd()
        return lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)
    main = vars(sys.modules["__main__"])
    main.clear()
    main.update(__name__="__main__", __spec__=None, __builtins__=builtins)
    if first == "-c":
        text, *arguments = rest
        sys.argv[:], sys.path[0] = ["-c", *arguments], ""
        return lambda: exec(compile(text, "<string>", "exec"), main)
    main["__file__"] = first
    sys.argv[:], sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
    with open(first, "rb") as file:
        read = file.read()
    return lambda: exec(compile(read, first, "exec"), main)
