"""`with ad.check() as report:`: what runs inside a block is watched, in this process."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from anydevice.check.failures import explained_error
from anydevice.check.finding import Finding
from anydevice.check.report import Report
from anydevice.check.run import Checked, examined, failing_site, newest_of
from anydevice.check.settings import Settings
from anydevice.check.watch import CheckWatch
from anydevice.devices.catalogue import card
from anydevice.devices.explain.explanation import annotate
from anydevice.virtual.machine import enabled, virtual_gpus


class Session:
    """Watches a block on the virtual GPUs that there are, or on one with values.

    Args:
        kinds: The kinds of GPU to find costs for.
        settings: What counts.
        name: What the report calls the block.

    Example:
        >>> with Session(["t4"], Settings()) as report:
        ...     train()  # doctest: +SKIP
        >>> report.findings  # doctest: +SKIP
    """

    def __init__(self, kinds: list[str], settings: Settings, name: str = "the block") -> None:
        self._kinds, self._stack = kinds, ExitStack()
        self.report = Report(name, kinds, settings)

    def __enter__(self) -> Report:
        present = enabled()
        if present is None:
            self._stack.enter_context(virtual_gpus(1, newest_of(self._kinds)))
        kind = present.gpu if present else card(newest_of(self._kinds))
        hollow = bool(present and present.hollow)
        self._watch = CheckWatch(kind, hollow=hollow, stop="", ends=False)
        self._watching = self._watch.watching()
        self._watching.__enter__()
        return self.report

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._stack:
            self._watching.__exit__(kind, error, traceback)
            trace = self._watch.trace()
            checked = examined(trace, self._kinds)
            self._add(checked, error)
        self.report.fill(checked)

    def _add(self, checked: Checked, error: BaseException | None) -> None:
        annotate(error)
        if error is not None and (explained := explained_error(error)):
            rule, what, fix = explained
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            site = failing_site(error)
            checked.findings.insert(0, Finding(rule, "error", f"{text}. {what}", fix, site))
