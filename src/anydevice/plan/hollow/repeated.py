"""Passes without gradients that repeat, as in an evaluation: a few are run, others taken alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from anydevice.plan.hollow.blocks import Ledger
from anydevice.plan.hollow.known import KnownValues
from anydevice.plan.time.work import Entry

# Note [Passes that repeat]
# A program that trains may evaluate hundreds of batches before the plan knows what a step takes.
# All of these passes are alike: of the same network, in evaluation mode, for inputs of the same
# shape. Once SEEN of them in a row have done the same (as many ops, as many blocks of memory,
# results of the same form, as much memory left behind), the network is not run for the next ones.
# They get new results of that form, and their work is that of the last one that was run.
#
# No peak is missed: a pass that begins with more memory in use than any that was run is run, too.
# So is every pass of a network whose results are not new tensors, such as views of its inputs or
# objects that hold tensors, a cache for example. The answer says how many were taken to be alike.

SEEN = 3  # passes in a row that are alike, until the next ones are not run
PLAIN = (type(None), bool, int, float, str)


@dataclass
class Form:
    """What a pass returned: the tensors' sizes and what is around them."""

    spec: TreeSpec
    leaves: list[Any]  # a number or text, or a tensor's size, stride, dtype and device

    def made(self) -> Any:
        """New results."""
        with _disable_current_modes():  # the program did not ask for them
            made = [_made(leaf) if isinstance(leaf, tuple) else leaf for leaf in self.leaves]
        return tree_unflatten(made, self.spec)


@dataclass
class Seen:
    """The passes of one network for inputs of one shape."""

    did: Any = None  # by the last one
    form: Form | None = None
    entries: list[Entry] = field(default_factory=list)
    alike: int = 0  # in a row
    most: int = 0  # bytes in use when one began


@dataclass
class _Pass:
    key: Any
    events: int
    position: int
    allocated: int


class Repeated:
    """The passes of a program, and those that were not run.

    Args:
        here: The allocator's events and the recorded entries so far.
        entries: The entries from the first position to the second.
        add: Adds entries.
        ledger: The blocks of memory.
        known: The values that are known.
    """

    def __init__(
        self,
        here: Callable[[], tuple[int, int]],
        entries: Callable[[int, int], list[Entry]],
        add: Callable[[list[Entry]], None],
        ledger: Ledger,
        known: KnownValues,
    ) -> None:
        self._here, self._entries, self._add = here, entries, add
        self._ledger, self._known = ledger, known
        self.left_out: dict[str, int] = {}  # passes, by the network's class
        self._seen: dict[Any, Seen] = {}
        self._running: _Pass | None = None
        self._skipping = ExitStack()

    def close(self) -> None:
        """All networks are run again."""
        self._seen.clear()
        self._skipping.close()

    @property
    def note(self) -> str:
        """A sentence for the answer; empty if all passes were run."""
        if not self.left_out:
            return ""
        counts = " and ".join(f"{n:,} of {name}" for name, n in self.left_out.items())
        return (
            f"Passes without gradients that repeat, as in an evaluation, were run until {SEEN} in "
            f"a row did the same; {counts} were taken to be like these."
        )

    def begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """The program calls a network."""
        self._running = None
        if not _evaluates(module):
            self.close()
            return
        allocated = torch.cuda.memory_allocated()
        self._running = _Pass(_key(module, inputs), *self._here(), allocated)

    def ends(self, output: Any) -> None:
        """The network returns."""
        run, self._running = self._running, None
        if run is None or run.key is None:
            return
        seen = self._seen.setdefault(run.key, Seen())
        events, position = self._here()
        form = self._form(output, run.events)
        left = self._ledger.left_since(run.events)
        did = events - run.events, position - run.position, left, form
        seen.alike = seen.alike + 1 if did == seen.did else 1
        seen.did, seen.form, seen.most = did, form, max(seen.most, run.allocated)
        seen.entries = self._entries(run.position, position)
        if form and seen.alike == SEEN:
            self._skip()

    def _is_new(self, tensor: Tensor, since: int) -> bool:
        """Whether it was made after this event, and is nothing but a size."""
        began = self._ledger.began(tensor)
        return began is not None and began >= since and self._known.of(tensor) is None

    def _skip(self) -> None:
        """From here on, a network that the program calls is not run if it need not be."""
        self._skipping.close()
        call = nn.Module.__call__

        def called(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if self._running is None:  # this is no part of a network
                result = self._result(module, (*args, *kwargs.values()))
                if result is not NotImplemented:
                    return result
            return call(module, *args, **kwargs)

        self._skipping.enter_context(patch.object(nn.Module, "__call__", called))

    def _result(self, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        """What a pass returns that need not be run; else NotImplemented."""
        if not _evaluates(module):
            return NotImplemented
        seen = self._seen.get(_key(module, inputs))
        if seen is None or seen.form is None or seen.alike < SEEN:
            return NotImplemented
        if torch.cuda.memory_allocated() > seen.most:
            return NotImplemented
        self._add(seen.entries)
        name = type(module).__name__
        self.left_out[name] = self.left_out.get(name, 0) + 1
        return seen.form.made()

    def _form(self, output: Any, since: int) -> Form | None:
        leaves, spec = tree_flatten(output)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors or not all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in leaves):
            return None
        if len({tensor.untyped_storage()._cdata for tensor in tensors}) < len(tensors):
            return None
        if not all(type(t) is Tensor and t.is_cuda and self._is_new(t, since) for t in tensors):
            return None
        forms = [_form_of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return Form(spec, forms)


def _evaluates(module: nn.Module) -> bool:
    """Whether this is a pass of one process without gradients, in evaluation mode."""
    alone = not torch.distributed.is_available() or not torch.distributed.is_initialized()
    return alone and not torch.is_grad_enabled() and not module.training


def _key(module: nn.Module, inputs: Any) -> Any:
    """The network and the form of what it is given; None if that is more than tensors."""
    leaves, spec = tree_flatten(inputs)
    if not all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in leaves):
        return None
    forms = [_form_of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return id(module), tuple(forms), torch.is_autocast_enabled("cuda"), str(spec)


def _form_of(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _made(form: tuple[Any, ...]) -> Tensor:
    shape, stride, dtype, device = form
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)
