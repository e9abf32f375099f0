"""Races between streams, as torch.cuda's own sanitizer finds them.

Note [Races between streams]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
PyTorch's sanitizer knows, for each tensor, which stream wrote to it and which have read it since,
and which streams have waited for which. It is asked about each op here, instead of being enabled:
it would end the program at the first race, and take a stack trace for each op. It begins when the
program makes a stream, since with one stream there is no race. The backward pass orders its streams
itself, so that all count as having waited when it begins and when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch.cuda import _sanitizer as sanitizer

from anydevice.check.trace import Site


class _Stack:
    """Stands for a stack trace: the program's line is enough."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def reverse(self) -> None:
        """As of a list."""


class Races:
    """Asks the sanitizer about each op.

    Args:
        site: Where the program is.
    """

    def __init__(self, site: Callable[[], Site]) -> None:
        self.found: dict[tuple[Site, str], None] = {}
        self._site = site
        self._handler: Any = None

    @property
    def looks(self) -> bool:
        """Whether there is more than one stream."""
        return self._handler is not None

    def begin(self) -> None:
        """The program makes a stream."""
        if self._handler is None:
            self._handler = sanitizer.CUDASanitizerDispatchMode().event_handler

    def all_waited(self) -> None:
        """All streams have waited for all others."""
        if self._handler is not None:
            self._handler.syncs.sync_all_streams()

    def around(self, op: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Runs an op, and notes the races that it is part of."""
        captured = torch.cuda.is_current_stream_capturing()
        if captured or op._overloadpacket is torch.ops.aten.record_stream:
            return run()
        schema = op._schema
        factory = bool(sanitizer.FACTORY_FUNCTION_REGEX.match(schema.name))
        given: Any = sanitizer.ArgumentHandler()
        given.parse_inputs(schema, args, kwargs, is_factory=factory)
        with patch.object(sanitizer, "traceback", self):
            result = run()
            given.parse_outputs(schema, result, is_factory=factory)
            errors = self._handler._handle_kernel_launch(
                torch.cuda.current_stream().cuda_stream,
                given.dataptrs_read - given.dataptrs_written,
                given.dataptrs_written,
                given.outputs,
                schema,
                given.tensor_aliases,
            )
        for error in errors:
            self._note(error)
        return result

    def _note(self, error: Any) -> None:
        now, before = error.current_access, error.previous_access
        site = now.stack_trace.site
        what = (
            f"A tensor is {_done(now)} here on one stream, and {_done(before)} at "
            f"{before.stack_trace.site} on another, with no wait in between: on a card, they may "
            "run at the same time."
        )
        self.found[site, what] = None

    # ---- what the sanitizer calls of Python's traceback ----

    @property
    def StackSummary(self) -> Races:  # noqa: N802  (its name there)
        """In place of the class."""
        return self

    def extract(self, frames: Any, **options: Any) -> _Stack:
        """The program's line."""
        return _Stack(self._site())

    def walk_stack(self, frame: Any) -> None:
        """Not needed."""


def _done(access: Any) -> str:
    return "read" if access.type is sanitizer.AccessType.READ else "written to"
