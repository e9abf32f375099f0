"""What a user accepts: rules to ignore, and which findings fail a check."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anydevice.check import failures
from anydevice.check.finding import KINDS, Finding
from anydevice.check.rules import RULES
from anydevice.errors import UsageError, did_you_mean

TABLE = "[tool.anydevice.check]"
KEYS = ("ignore", "fail-on", "gpus")


@dataclass(frozen=True)
class Settings:
    """What counts.

    Attributes:
        ignore: Rules whose findings are left out.
        fail_on: The kinds of findings that fail a check, each with the least share of a step.
        gpus: The kinds of GPU that are checked for if none is named.
    """

    ignore: tuple[str, ...] = ()
    fail_on: tuple[tuple[str, float], ...] = tuple((kind, 0.0) for kind in KINDS)
    gpus: tuple[str, ...] = ("h100",)

    def fails(self, findings: Iterable[Finding], step: dict[str, float]) -> bool:
        """Whether any of these findings fails the check."""
        return any(self._fails(finding, step) for finding in findings)

    def _fails(self, finding: Finding, step: dict[str, float]) -> bool:
        for kind, least in self.fail_on:
            if finding.kind == kind:
                return finding.share(step) >= least
        return False


def settings_of(
    folder: Path | None,
    *,
    ignore: Sequence[str] = (),
    fail_on: Sequence[str] = (),
    gpus: Sequence[str] = (),
) -> Settings:
    """The settings of the pyproject.toml that this folder belongs to, with those that are given."""
    settings = _of_table(_table(folder)) if folder else Settings()
    ignored = dict.fromkeys((*settings.ignore, *map(known_rule, ignore)))
    settings = replace(settings, ignore=tuple(ignored))
    if fail_on:
        settings = replace(settings, fail_on=failing(fail_on))
    return replace(settings, gpus=tuple(gpus)) if gpus else settings


def known_rule(name: str) -> str:
    """The name, if there is such a rule."""
    known = [rule.name for rule in RULES] + list(failures.RULES)
    if name not in known:
        raise UsageError(f"expected a rule of anydevice check, got {name!r}: "
                         f"{did_you_mean(name, known)}")  # fmt: skip
    return name


def failing(given: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """`("error", "slow:2%")` as kinds with shares; errors always fail."""
    levels = {"error": 0.0}
    for level in (part for text in given for part in re.split(r"[|,]", text)):
        found = re.fullmatch(r"(error|slow|memory)(?::(\d+(?:\.\d+)?)%)?", level.strip())
        if not found or (found[1] == "error" and found[2]):
            raise UsageError(
                f"expected error, slow, memory or a share such as slow:2% after --fail-on, got "
                f"{level.strip()!r}."
            )
        levels[found[1]] = float(found[2] or 0) / 100
    return tuple(levels.items())


def _table(folder: Path) -> dict[str, Any]:
    for parent in (folder, *folder.parents):
        if (path := parent / "pyproject.toml").is_file():
            try:
                whole = tomllib.loads(path.read_text("utf-8"))
            except (OSError, ValueError) as error:
                raise UsageError(f"expected TOML in {path}, got a file that cannot be read "
                                 f"({error}).") from error  # fmt: skip
            table = whole.get("tool", {}).get("anydevice", {}).get("check", {})
            return table if isinstance(table, dict) else {}
    return {}


def _of_table(table: dict[str, Any]) -> Settings:
    for key in table:
        if key not in KEYS:
            raise UsageError(f"expected a key of {TABLE} in pyproject.toml, got {key!r}: "
                             f"{did_you_mean(key, KEYS)}")  # fmt: skip
    settings = Settings(ignore=tuple(map(known_rule, _texts(table, "ignore"))))
    if fail_on := _texts(table, "fail-on"):
        settings = replace(settings, fail_on=failing(fail_on))
    return replace(settings, gpus=tuple(_texts(table, "gpus")) or settings.gpus)


def _texts(table: dict[str, Any], key: str) -> list[str]:
    given = table.get(key, [])
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"expected text or a list of texts as {key} of {TABLE}, got {given!r}.")
    return texts
