"""Generators and their states: several generators may share a state, and one may take another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


def is_same_state(one: torch.Generator, other: torch.Generator) -> bool:
    """Whether drawing from one moves the other."""
    if one.device != other.device or one.get_offset() != other.get_offset():
        return False
    before = one.get_offset()
    one.set_offset(before + 4)
    same = other.get_offset() == before + 4
    one.set_offset(before)
    return same


@contextmanager
def in_states(
    generators: Sequence[torch.Generator], states: Sequence[torch.Generator]
) -> Iterator[None]:
    """Each generator draws from its state inside, and from what it had before afterwards."""
    before = [generator.graphsafe_get_state() for generator in generators]
    _set(generators, states)
    try:
        yield
    finally:
        _set(generators, before)


def _set(generators: Sequence[torch.Generator], states: Sequence[torch.Generator]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.graphsafe_set_state(state)
