"""The choices of a step, read from its bytes."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """One number after the other; zeros, the simplest choice, once the bytes have run out."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def below(self, count: int) -> int:
        number = 0
        for _ in range(1 if count <= 256 else 2):
            number = number << 8 | (self._data[self._at] if self._at < len(self._data) else 0)
            self._at += 1
        return number % count

    def among(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def once_in(self, count: int) -> bool:
        """True in one case of `count`."""
        return self.below(count) == count - 1
