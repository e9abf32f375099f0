"""Notes the calls of PyTorch's functions that rules ask about, as the program makes them."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from anydevice.check.tape import Tape
from anydevice.frames import is_own

Info = dict[str, Any]
Note = Callable[[str, Info], None]  # the call's name, and what a rule needs to know
CLOCKS = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns")


class Heard:
    """Wraps functions inside a block, and notes each call.

    Args:
        note: Called with a name and what is known, before the function itself.
        tape: Learns of values that are read without an op, and of copies that have arrived.
        goes_back: Called when a backward pass begins.
        makes_stream: Called when the program makes a stream.
    """

    def __init__(
        self,
        note: Note,
        tape: Tape,
        goes_back: Callable[[], None],
        makes_stream: Callable[[], None],
    ) -> None:
        self._note, self._tape = note, tape
        self._goes_back, self._makes_stream = goes_back, makes_stream
        self._making = 0  # schedulers, which step in their own __init__
        self._stack = ExitStack()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """The block."""
        with self._stack:
            self._of_memory()
            self._of_training()
            self._of_data()
            self._of_modules()
            self._of_reads()
            self._of_streams()
            self._of_clocks()
            yield

    def _wrap(self, owner: Any, name: str, told: Callable[..., tuple[str, Info] | None]) -> None:
        """Replaces a function by one that first calls `told` with the same arguments."""
        plain = inspect.getattr_static(owner, name)
        if isinstance(plain, staticmethod | classmethod):
            return
        plain = getattr(owner, name)

        @wraps(plain)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if (known := told(*args, **kwargs)) is not None:
                self._note(*known)
            return plain(*args, **kwargs)

        self._stack.enter_context(patch.object(owner, name, noted))

    def _of_memory(self) -> None:
        def empty() -> tuple[str, Info]:
            return "empty_cache", {}

        self._wrap(torch.cuda, "empty_cache", empty)
        self._wrap(torch.cuda.memory, "empty_cache", empty)
        self._wrap(torch, "save", lambda *args, **kwargs: ("save", {}))
        load = torch.load

        @wraps(load)
        def noted(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            loaded = load(f, map_location, *args, **kwargs)
            leaves = torch.utils._pytree.tree_leaves(loaded)
            on_gpu = sum(t.nbytes for t in leaves if isinstance(t, Tensor) and t.is_cuda)
            self._note("load", {"given": map_location is not None, "bytes": on_gpu})
            return loaded

        self._stack.enter_context(patch.object(torch, "load", noted))

    def _of_training(self) -> None:
        def cleared(self: Optimizer, set_to_none: bool = True) -> tuple[str, Info]:
            return "zero_grad", {"to_none": set_to_none}

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> tuple[str, Info]:
            self._goes_back()
            first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
            kept = kwargs.get("retain_graph", args[1] if len(args) > 1 else None)
            function = type(getattr(first, "grad_fn", None)).__name__
            return "backward", {"retain": bool(kept), "function": function}

        def gradients(*args: Any, **kwargs: Any) -> tuple[str, Info]:
            self._goes_back()
            return "gradients", {}

        self._wrap(Optimizer, "zero_grad", cleared)
        self._wrap(nn.Module, "zero_grad", cleared)
        self._wrap(torch.autograd, "backward", backward)
        self._wrap(torch.autograd, "grad", gradients)
        for kind in (torch.amp.GradScaler,):
            for name in ("scale", "unscale_", "step", "update"):
                self._wrap(kind, name, _named(f"scaler.{name}", enabled=True))
        clip: Any = sys.modules["torch.nn.utils.clip_grad"]
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for owner in (clip, nn.utils):
                self._wrap(owner, name, _named("clip"))
        self._of_schedulers()

    def _of_schedulers(self) -> None:
        first = lr_scheduler.LRScheduler._initial_step

        @wraps(first)
        def initial(scheduler: Any) -> None:
            self._making += 1
            try:
                first(scheduler)
            finally:
                self._making -= 1

        def stepped(scheduler: Any, *args: Any, **kwargs: Any) -> tuple[str, Info] | None:
            if self._making:
                return None
            optimizer = scheduler.optimizer
            early = scheduler._step_count == 1 and not getattr(optimizer, "_opt_called", False)
            return "scheduler.step", {"early": early, "optimizer": id(optimizer)}

        self._stack.enter_context(patch.object(lr_scheduler.LRScheduler, "_initial_step", initial))
        self._wrap(lr_scheduler.LRScheduler, "step", stepped)

    def _of_data(self) -> None:
        def loader(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> tuple[str, Info]:
            return "DataLoader", {"loader": id(self)}

        def iterated(self: Any, loader: Any, *args: Any, **kwargs: Any) -> tuple[str, Info]:
            return "iterate", {"loader": loader, "sampler": getattr(loader, "sampler", None)}

        def epoch(self: Any, epoch: int) -> tuple[str, Info]:
            return "set_epoch", {"sampler": id(self)}

        base: Any = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        self._wrap(DataLoader, "__init__", loader)
        self._wrap(base, "__init__", iterated)
        self._wrap(DistributedSampler, "set_epoch", epoch)

    def _of_modules(self) -> None:
        def mode(self: nn.Module, mode: bool = True) -> tuple[str, Info]:
            return "train" if mode else "eval", {"module": id(self)}

        def registered(self: nn.Module, name: str, param: Any) -> tuple[str, Info]:
            return "parameter", {"parameter": param, "name": name}

        def deep(self: nn.Parameter, memo: Any) -> tuple[str, Info]:
            return "deepcopy", {"parameter": id(self)}

        self._wrap(nn.Module, "train", mode)
        self._wrap(nn.Parameter, "__deepcopy__", deep)
        self._wrap(nn.Module, "register_parameter", registered)
        self._wrap(Optimizer, "__init__", lambda made, *a, **k: ("optimizer", {"optimizer": made}))

    def _of_reads(self) -> None:
        reads = self._tape.reads

        def read(self: Tensor, *args: Any, **kwargs: Any) -> None:
            reads(self)

        for name in ("numpy", "tolist", "__array__"):
            self._wrap(torch.Tensor, name, read)

    def _of_streams(self) -> None:
        arrived, makes_stream = self._tape.arrived, self._makes_stream
        make: Any = torch.cuda.Stream.__new__

        def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
            makes_stream()
            return make(kind, *args, **kwargs)

        def asked(plain: Callable[[Any], bool]) -> Callable[[Any], bool]:
            @wraps(plain)
            def query(self: Any) -> bool:
                if done := plain(self):
                    arrived()
                return done

            return query

        self._stack.enter_context(patch.object(torch.cuda.Stream, "__new__", new))
        for kind in (torch.cuda.Stream, torch.cuda.Event):
            self._stack.enter_context(patch.object(kind, "query", asked(kind.query)))

    def _of_clocks(self) -> None:
        for name in CLOCKS:
            self._clock(name)

    def _clock(self, name: str) -> None:
        plain, note = getattr(time, name), self._note

        @wraps(plain)
        def noted() -> Any:
            frame = sys._getframe(1)
            if is_own(frame.f_code.co_filename):
                note("clock", {"function": frame.f_code, "frame": id(frame)})
            return plain()

        self._stack.enter_context(patch.object(time, name, noted))


def _named(name: str, **info: Any) -> Callable[..., tuple[str, Info]]:
    def told(*args: Any, **kwargs: Any) -> tuple[str, Info]:
        if info and not getattr(args[0], "_enabled", True):
            return name, {"enabled": False}
        return name, dict(info)

    return told
