"""What a case is, what came of it, and where it is known to differ."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

KNOWN = Path(__file__).with_name("exceptions.toml")


@dataclass(frozen=True, order=True)
class Case:
    """One check of one op (or module, optimizer, autocast entry, program) in one dtype."""

    check: str
    name: str
    dtype: str


@dataclass(frozen=True)
class Outcome:
    """`computed` of `tried` samples gave an answer to compare; `failures` says what was wrong."""

    case: Case
    tried: int
    computed: int
    failures: tuple[str, ...]
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not self.failures

    @property
    def empty(self) -> bool:
        """Nothing was compared, so nothing is known: counted neither as right nor as wrong."""
        return self.right and self.computed == 0


@dataclass(frozen=True)
class KnownDifference:
    """An entry of exceptions.toml; `dtypes` left out means all of them."""

    checks: list[str]
    name: str
    reason: str
    dtypes: list[str] | None = None

    def covers(self, case: Case) -> bool:
        return (
            case.name == self.name
            and case.check in self.checks
            and (self.dtypes is None or case.dtype in self.dtypes)
        )


def known_differences(path: Path = KNOWN) -> list[KnownDifference]:
    return [KnownDifference(**entry) for entry in tomllib.loads(path.read_text())["known"]]


def judged(
    outcomes: list[Outcome], known: list[KnownDifference]
) -> tuple[list[Outcome], list[Outcome], list[KnownDifference]]:
    """The failures nobody announced, those announced, and the announcements that no longer hold.

    An entry is stale for any case it covers that came out right, so that it stays as narrow as
    the difference is.
    """
    failed = [o for o in outcomes if not o.right]
    announced = [o for o in failed if any(k.covers(o.case) for k in known)]
    new = [o for o in failed if o not in announced]
    right = [o.case for o in outcomes if o.right and not o.empty]
    stale = [k for k in known if any(k.covers(case) for case in right)]
    return new, announced, stale
