"""Imports torch once, then forks for each program that it is sent: see `tests/forked.py`.

A child returns from `serve`, and the program is the last thing that its `__main__` does: it ends as
any Python process ends, at its last line, by an exception or by `sys.exit`, and through `atexit`.
"""

import builtins
import gc
import json
import os
import runpy
import socket
import sys
from collections.abc import Callable

import torch._dynamo.eval_frame  # noqa: F401  an optimizer imports it at its first step

import anydevice.virtual  # noqa: F401


def serve(descriptor: int) -> Callable[[], object]:
    """Returns in each child, with what it is to run; the server itself ends with its client."""
    connection = socket.socket(fileno=descriptor)
    gc.collect()
    gc.freeze()  # a child's collector need not look through all that was imported here
    while request := connection.recv(4):
        size = int.from_bytes(request)
        text, descriptors, *_ = socket.recv_fds(connection, size, 3)
        while len(text) < size:
            text += connection.recv(size - len(text))
        child = os.fork()
        if child == 0:
            connection.close()
            return prepared(json.loads(text), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(child.to_bytes(8))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(status.to_bytes(8, signed=True))
    os._exit(0)


def prepared(request: dict, descriptors: list[int]) -> Callable[[], object]:
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    return program(*request["words"])


def program(first: str, *rest: str) -> Callable[[], object]:
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
        text = file.read()
    return lambda: exec(compile(text, first, "exec"), main)
