"""`anydevice plan --vary` and `--try`: the same program with other options, the quickest first."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from subprocess import PIPE
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from anydevice.errors import UsageError
from anydevice.files import write_whole
from anydevice.system import usable_cores
from anydevice.tables import Shown, Table
from anydevice.text import UNSET, duration_text, size_text
from anydevice.version import __version__
from anydevice.virtual.cache import MODE, folder

OWN = ("--nodes", "--gpus", "--gpu", "--network", "--sdpa")  # options of the plan, not the program
KEPT = "plans"


@dataclass(frozen=True)
class Variation:
    """An option and the values that it takes in turn."""

    option: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Variation:
        """Of `--batch=1,2,4`.

        Raises:
            UsageError: If there is no option, or no value.
        """
        option, _, values = text.partition("=")
        listed = tuple(filter(None, (value.strip() for value in values.split(","))))
        if not option.strip() or not listed:
            raise UsageError(
                f"expected an option and its values after --vary, such as --batch=1,2,4, got "
                f"{text!r}."
            )
        return cls(option.strip(), listed)


@dataclass(frozen=True)
class Outcome:
    """A combination of values, and the plan of it as plain data; or why there is none."""

    values: tuple[str, ...]
    plan: dict[str, Any] | None
    error: str = ""

    @property
    def clusters(self) -> list[dict[str, Any]]:
        """The plan's verdicts."""
        return (self.plan or {}).get("clusters") or (self.plan or {}).get("gpus") or []

    @property
    def fits(self) -> bool:
        """Whether it surely fits."""
        return bool(self.plan and self.plan["fits"])

    @property
    def rate(self) -> float:
        """Tokens, or else samples, a second."""
        time = (self.clusters[0].get("time") or {}) if self.clusters else {}
        return time.get("tokens_per_second") or time.get("samples_per_second") or 0.0

    @property
    def reserved(self) -> int:
        """Bytes of the tightest role."""
        roles = [role for one in self.clusters[:1] for role in one.get("roles", (one,))]
        return max((role["peak_bytes"]["reserved"] for role in roles), default=0)


@dataclass(repr=False)
class Variations(Shown):
    """The outcomes, the quickest that fit first; it shows itself as a table."""

    options: tuple[str, ...]
    outcomes: list[Outcome]

    @property
    def fits(self) -> bool:
        """Whether any of them surely fits."""
        return any(outcome.fits for outcome in self.outcomes)

    def to_json(self) -> str:
        """The outcomes as JSON."""
        data = [
            {
                "values": dict(zip(self.options, one.values, strict=True)),
                "error": one.error or None,
                "plan": one.plan,
            }
            for one in self._sorted()
        ]
        return json.dumps(data, indent=2)

    def _sorted(self) -> list[Outcome]:
        return sorted(self.outcomes, key=lambda one: (-one.fits, one.plan is None, -one.rate))

    def _shown(self) -> Iterator[Table]:
        figures = ("reserved", "step", "rate", "on each GPU", "MFU")
        table = Table((*self.options, "fits", *figures), right=(*self.options, *figures))
        for outcome in self._sorted():
            table.rows.append((*outcome.values, *_cells(outcome)))
        yield table


def _cells(outcome: Outcome) -> tuple[str, ...]:
    if outcome.plan is None:
        return outcome.error, *(UNSET,) * 5
    one = outcome.clusters[0]
    time = one.get("time") or {}
    what = "tokens/s" if time.get("tokens_per_second") else "samples/s"
    seconds = time.get("seconds")
    return (
        "yes" if outcome.fits else "NO",
        size_text(outcome.reserved),
        duration_text(seconds) if seconds else UNSET,
        f"{outcome.rate:,.0f} {what}" if seconds else UNSET,
        f"{outcome.rate / one.get('ranks', 1):,.0f}" if seconds else UNSET,
        f"{time['utilisation']:.1%}" if time.get("utilisation") else UNSET,
    )


def vary(
    variations: Sequence[Variation], options: Sequence[str], program: Sequence[str]
) -> Variations:
    """Plans each combination of values, in as many processes as there are cores.

    Args:
        variations: The options and their values.
        options: Those of `anydevice plan`.
        program: What follows them: the launcher, the program, its arguments.

    Returns:
        All outcomes. Each is kept in the cache; the same one is not planned again.
    """
    names = tuple(variation.option for variation in variations)
    combinations = list(product(*(variation.values for variation in variations)))
    found = Variations(names, [])
    plans = _Plans(names, tuple(options), tuple(program))
    workers = max(1, min(len(combinations), usable_cores()))
    with ThreadPoolExecutor(workers) as pool, _shown(found, len(combinations)) as show:
        running = [pool.submit(plans.of, values) for values in combinations]
        try:
            for done in as_completed(running):
                found.outcomes.append(done.result())
                show()
        except BaseException:
            pool.shutdown(cancel_futures=True, wait=False)
            plans.stop()
            many = f"{len(found.outcomes)} of {len(combinations)}"
            print(f"anydevice: {many} are kept; the same command continues.", file=sys.stderr)
            raise
    return found


@contextmanager
def _shown(found: Variations, count: int) -> Iterator[Callable[[], None]]:
    """What shows the outcomes so far: a table that grows in a terminal, else a line for each."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda: print(_progress(found.options, found.outcomes, count), file=sys.stderr)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show() -> None:
            waits = f"{len(found.outcomes)} of {count} are planned; Ctrl-C keeps them"
            live.update(Group(found, Text(waits, "dim")), refresh=True)

        show()
        yield show


def _progress(names: tuple[str, ...], outcomes: list[Outcome], count: int) -> str:
    last = outcomes[-1]
    values = " ".join(f"{n}={v}" for n, v in zip(names, last.values, strict=True))
    result = last.error or f"{'fits' if last.fits else 'does not fit'}, {last.rate:,.0f}/s"
    return f"anydevice: {len(outcomes)} of {count}: {values}: {result}"


@dataclass
class _Plans:
    """Plans combinations of values for these options, each in a separate Python."""

    names: tuple[str, ...]
    options: tuple[str, ...]
    program: tuple[str, ...]
    _running: set[subprocess.Popen[str]] = field(default_factory=set)

    def of(self, values: tuple[str, ...]) -> Outcome:
        """The plan for these values; from the cache, if it was made before."""
        options, program = list(self.options), list(self.program)
        for name, value in zip(self.names, values, strict=True):
            if name in OWN:
                options = with_option(options, name, value)
            else:
                program = with_option(program, name, value)
        command = [*options, *program]
        kept = folder(KEPT) / f"{_key(command)}.json"
        with suppress(OSError, ValueError):
            return Outcome(values, json.loads(kept.read_text("utf-8")))
        code, out, err = self._run(
            [sys.executable, "-m", "anydevice", "plan", "--json", "--quiet", *command]
        )
        if code not in (0, 1):
            sentence = (err.strip().splitlines() or ["no answer"])[-1]
            return Outcome(values, None, sentence.removeprefix("anydevice: "))
        write_whole(kept, out.encode(), mode=MODE)
        return Outcome(values, json.loads(out))

    def _run(self, command: list[str]) -> tuple[int, str, str]:
        with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
            self._running.add(process)
            out, err = process.communicate()
            self._running.discard(process)
        return process.returncode, out, err

    def stop(self) -> None:
        """Ends those that are running."""
        for process in list(self._running):
            process.terminate()


def with_option(arguments: Sequence[str], option: str, value: str) -> list[str]:
    """The arguments with another value for the option, in the same place or as the last."""
    changed = list(arguments)
    for at, argument in enumerate(changed):
        name, equals, _ = argument.partition("=")
        if name == option:
            where, text = (at, f"{name}={value}") if equals else (at + 1, value)
            changed[where : where + 1] = [text]
            return changed
    return [*changed, *([option, value] if option.startswith("-") else [f"{option}={value}"])]


def _key(command: Sequence[str]) -> str:
    """What the answer depends on: the command, its folder, its Python files, the version."""
    files = [Path(word) for word in command if word.endswith((".py", ".toml"))]
    told = [str(file.stat().st_mtime_ns) for file in files if file.is_file()]
    words = [__version__, os.getcwd(), *command, *told]
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]


def usual(nodes: int | None, batch: tuple[str, int] | None) -> list[Variation]:
    """What `--try` varies: half and twice as many nodes, and half and twice the batch.

    Args:
        nodes: How many there are.
        batch: The program's option for the batch, and its value.

    Raises:
        UsageError: If neither is known.
    """
    found = []
    if nodes is not None:
        found.append(Variation("--nodes", _around(nodes)))
    if batch is not None:
        found.append(Variation(batch[0], _around(batch[1])))
    if not found:
        raise UsageError(
            "expected --nodes, or --batch-arg with a batch among the program's arguments, for "
            "--try to vary, got neither: name one, or use --vary."
        )
    return found


def _around(count: int) -> tuple[str, ...]:
    return tuple(map(str, dict.fromkeys((max(1, count // 2), count, 2 * count))))
