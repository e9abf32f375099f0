"""What a case is, what came of it, and where it is known to differ."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.torch_version import TorchVersion

# What a disagreement about the last digits alone ends with.
ROUNDING = " (equal but for rounding)"
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

    names: list[str]
    checks: list[str]
    reason: str
    dtypes: list[str] | None = None
    rounding: bool = False  # the entry excuses the last digits and nothing else
    since: str = "0"  # the first torch that has the op
    as_on_a_card: bool = False  # PyTorch itself does this on CUDA, so the CPU is not the truth

    def covers(self, case: Case) -> bool:
        return (
            case.name in self.names
            and case.check in self.checks
            and (self.dtypes is None or case.dtype in self.dtypes)
        )

    def excuses(self, outcome: Outcome) -> bool:
        mild = all(ROUNDING in failure for failure in outcome.failures)
        return self.covers(outcome.case) and (mild or not self.rounding)


def known_differences(path: Path = KNOWN) -> list[KnownDifference]:
    entries = [KnownDifference(**e) for e in tomllib.loads(path.read_text()).get("known", [])]
    return [entry for entry in entries if TorchVersion(torch.__version__) >= entry.since]


def judged(
    outcomes: list[Outcome], known: list[KnownDifference]
) -> tuple[list[Outcome], list[Outcome], list[Case]]:
    """The failures nobody announced, those announced, and the cases announced that are right."""
    failed = [o for o in outcomes if not o.right]
    announced = [o for o in failed if any(k.excuses(o) for k in known)]
    new = [o for o in failed if o not in announced]
    right = [o.case for o in outcomes if o.right and not o.empty]
    return new, announced, sorted(c for c in right if any(k.covers(c) for k in known))


def as_on_a_card(outcomes: list[Outcome], known: list[KnownDifference]) -> list[Outcome]:
    entries = [k for k in known if k.as_on_a_card]
    return [o for o in outcomes if not o.right and any(k.excuses(o) for k in entries)]


def unmet(cases: list[Case], known: list[KnownDifference]) -> list[str]:
    """The names in exceptions.toml that belong to no case at all."""
    met = {case.name for case in cases if any(k.covers(case) for k in known)}
    return sorted({name for k in known for name in k.names} - met)
