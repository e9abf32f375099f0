"""The hundred short programs of tests/virtual, each in a fresh interpreter."""

from collections.abc import Callable, Iterator

from tests.conformance.agree import DisagreementError
from tests.virtual.exit_programs import complaint, programs


def cases() -> Iterator[tuple[str, str]]:
    yield from ((name, "-") for name in programs())


def program(name: str, dtype: str, limit: int | None) -> Iterator[Callable[[], bool]]:
    yield lambda: ended_well(name)


def ended_well(name: str) -> bool:
    if wrong := complaint(name):
        raise DisagreementError(wrong)
    return True
