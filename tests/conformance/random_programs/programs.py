"""Programs, and how they are written down."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Step:
    kind: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.kind}:{self.data.hex()}"


Program: TypeAlias = tuple[Step, ...]


def written(program: Program) -> str:
    return " ".join(map(str, program))


def read(text: str) -> Program:
    pairs = (step.split(":") for step in text.split())
    return tuple(Step(kind, bytes.fromhex(data)) for kind, data in pairs)
