"""The list of slow tests names tests that there are."""

from pathlib import Path

TESTS = Path(__file__).parent


def test_every_slow_test_is_there() -> None:
    named = (TESTS / "slow.txt").read_text().splitlines()
    assert named == sorted(set(named))
    for line in named:
        file, name = line.split("::")
        assert f"def {name}(" in (TESTS / file).read_text(), f"{line}: no such test"
