"""What would start other ranks: mp.spawn, Process, torchrun's own code, Lightning, accelerate."""

from __future__ import annotations

import multiprocessing.process as processes
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anydevice.errors import UsageError
from anydevice.frames import is_own, own_line
from anydevice.plan.cluster.world import Part, World

# Note [What would start other ranks]
# A launcher's process becomes this rank's: where it would start processes, the one of this rank is
# called, and the others are left out.
#
# - mp.spawn and start_processes: the function, with the rank's number.
# - torch.distributed.run, which accelerate and others call: the script, with torchrun's variables.
# - Popen of this Python with another LOCAL_RANK, as Lightning does it: it is taken to run on.
# - A loop over Process(target=f) whose function calls init_process_group, or calls one that does:
#   they are kept until one is joined. Then the one of this rank is called here.
# - Process(target=f, args=(network, …)) with something on a GPU, which real processes share
#   (Hogwild): the first one that trains is called here, at once, and the others are left out. A
#   process that does something else with a GPU cannot be planned.
# - All other processes start, such as the workers of a DataLoader.

TORCHRUN, ELASTIC = "torch.distributed.run", "torch.distributed.launcher.api"
RUNNING = None  # what poll() says of a process that has not ended
JOINS, BACKWARD = "init_process_group", "backward"
NOT_SHARED = (
    "expected a program whose processes do not share a GPU's memory, got {}, which gives what is "
    "on a GPU to a process that does not train: do its work in the program's own process."
)
DEEPEST = 4  # calls between a process's function and that
OF_ACCELERATE = "ACCELERATE_MIXED_PRECISION"


def started_here(part: Part, world: World | None) -> Iterator[tuple[Any, str, Any]]:
    """What is patched: owner, name, value."""
    spawn = _spawning(part, world)
    for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        yield owner, "spawn", spawn
        yield owner, "start_processes", spawn
    yield subprocess, "Popen", _popen(part)
    yield from _processes(part)


def started_when_loaded(
    part: Part, world: World | None
) -> dict[str, Callable[[], Iterator[tuple[Any, str, Any]]]]:
    """The same for modules that a program may import later, by their names."""

    def torchrun() -> Iterator[tuple[Any, str, Any]]:
        yield sys.modules[TORCHRUN], "run", _torchrun(part, world)

    def elastic() -> Iterator[tuple[Any, str, Any]]:
        yield sys.modules[ELASTIC].elastic_launch, "__call__", _elastic(part)

    return {TORCHRUN: torchrun, ELASTIC: elastic}


def _nodes(world: World | None) -> int:
    return world.nodes if world else 1


def _spawning(part: Part, world: World | None) -> Callable[..., Any]:
    def spawn(
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        nprocs: int = 1,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> Any:
        """Calls it as this rank's process of those that it would start."""
        part.size = max(part.size, nprocs * _nodes(world))
        fn(part.rank % nprocs, *args)
        return None if join else SimpleNamespace(join=lambda *given: True, processes=[])

    return spawn


def _torchrun(part: Part, world: World | None) -> Callable[[Any], None]:
    def run(args: Any) -> None:
        """Runs the script as this rank."""
        each = str(args.nproc_per_node)
        gpus = int(each) if each.isdecimal() else torch.cuda.device_count()
        there = world or World(1, gpus)
        part.size = max(part.size, there.size)
        words = [str(args.training_script), *args.training_script_args]
        with patch.dict(os.environ, there.environment(part.rank)):
            _run(words, module=bool(args.module))

    return run


def _elastic(part: Part) -> Callable[..., Any]:
    def launch(self: Any, *args: Any) -> dict[int, Any]:
        """Calls the function as this rank."""
        there = World(int(self._config.max_nodes), int(self._config.nproc_per_node))
        part.size = max(part.size, there.size)
        with patch.dict(os.environ, there.environment(part.rank)):
            if callable(self._entrypoint):
                return {part.rank: self._entrypoint(*args)}
            _run([str(word) for word in args if word != "-u"])
        return {part.rank: None}

    return launch


def _run(words: Sequence[str], *, module: bool = False) -> None:
    with patch.object(sys, "argv", list(words)):
        if module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            runpy.run_path(words[0], run_name="__main__")


def _popen(part: Part) -> Any:
    popen: Any = subprocess.Popen

    class Started(popen):  # type: ignore[misc]
        """As Popen; it leaves out processes that are other ranks."""

        def __new__(cls, args: Any = (), *more: Any, env: Any = None, **options: Any) -> Any:
            own = isinstance(args, list | tuple) and bool(args) and args[0] == sys.executable
            if own and env and env.get("LOCAL_RANK", "0") != os.environ.get("LOCAL_RANK", "0"):
                part.size = max(part.size, int(env.get("WORLD_SIZE", "1")))
                return _Elsewhere(args)
            if own and env and OF_ACCELERATE in env:  # as accelerate starts a single process
                with patch.dict(os.environ, env):
                    _run([word for word in args[1:] if word != "-m"], module="-m" in args[:2])
                return _Elsewhere(args, 0)
            return super().__new__(cls)

    return Started


class _Elsewhere:
    """A process of another rank, which was not started."""

    pid = 0

    def __init__(self, args: Sequence[str], returncode: int | None = RUNNING) -> None:
        self.args, self.returncode = args, returncode

    def poll(self) -> int | None:
        """It runs on."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Nobody is waited for."""
        return self.returncode or 0

    def send_signal(self, number: int) -> None:
        """Nobody hears it."""

    kill = terminate = lambda self: None


def _processes(part: Part) -> Iterator[tuple[Any, str, Any]]:
    base: Any = processes.BaseProcess
    start, join, exitcode = base.start, base.join, base.exitcode
    kept: list[Any] = []
    done: list[Any] = []

    def start_or_keep(self: Any) -> None:
        target: Any = getattr(self, "_target", None)
        if is_rank(target):
            kept.append(self)
        elif _is_given_a_gpu(self):
            if not mentions(target, BACKWARD):
                raise UsageError(NOT_SHARED.format(own_line(sys._getframe(1))))
            done.append(self)
            if not part.sharing:
                part.sharing = True
                target(*self._args, **self._kwargs)
        else:
            start(self)

    def join_or_call(self: Any, timeout: float | None = None) -> None:
        if kept:
            mine = kept[part.rank % len(kept)]
            done.extend(kept)
            kept.clear()
            mine._target(*mine._args, **mine._kwargs)
        if self not in done:
            join(self, timeout)

    yield base, "start", start_or_keep
    yield base, "join", join_or_call
    yield base, "exitcode", property(lambda self: 0 if self in done else exitcode.fget(self))


def _is_given_a_gpu(process: Any) -> bool:
    """Whether a process gets a network, or a tensor, that is on a GPU."""
    given = tree_leaves((getattr(process, "_args", ()), getattr(process, "_kwargs", {})))
    networks = [one for one in given if isinstance(one, nn.Module)]
    tensors = [one for one in given if isinstance(one, Tensor)]
    return any(t.is_cuda for t in (*tensors, *chain(*(net.parameters() for net in networks))))


def is_rank(target: Any) -> bool:
    """Whether a function of the program joins a group of ranks, or calls one that does."""
    return mentions(target, JOINS)


def mentions(target: Any, what: str, deep: int = DEEPEST) -> bool:
    """Whether a function of the program uses this name, or calls one that does."""
    function = getattr(target, "__func__", target)
    if not isinstance(function, FunctionType) or not is_own(function.__code__.co_filename):
        return False
    names = _names(function.__code__)
    if what in names:
        return True
    found = (function.__globals__.get(name) for name in names)
    return bool(deep) and any(
        mentions(each, what, deep - 1) for each in found if each is not function
    )


def _names(code: CodeType) -> set[str]:
    inside = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names, inside))
