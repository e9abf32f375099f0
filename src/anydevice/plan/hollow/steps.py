"""What a step of a program is: of its optimizers, written by hand, or a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

STEP, UPDATE, BACKWARD, FORWARD = "step", "update", "backward pass", "forward pass"
WHOLE = "program"
UNITS = (STEP, UPDATE, BACKWARD, FORWARD, WHOLE)  # the first that a program has is counted
PATIENCE = 12  # steps of one optimizer alone, until no other one is waited for
MANY = 256  # passes after which a program that only does these is ended
ALIKE = 8  # forward passes in a row that leave as much memory behind
SOME = 8  # backward passes in a step, from which on not all are run again

# Note [What is a step]
# A plan ends a program after a few steps, so it must see where one ends. From the clearest sign
# down, a step is
#
# - a round of the optimizers of torch.optim. With one optimizer that is its step. With several, a
#   GAN's for example, a round ends where the first one's turn comes again after another's. The
#   first round is known only then; all later ones are taken to be like it.
# - an update written by hand: after a backward pass, a leaf that requires gradients is written to.
#   It ends where the program next computes with such a leaf, or when the program ends.
# - a backward pass, if nothing is ever updated: a benchmark, an attack on images.
# - a forward pass, if there is no backward pass either: inference. It begins where a network is
#   called, so what the program does with the result belongs to it.
# - the whole program, if it calls no network.
#
# A step of many backward passes accumulates gradients. It is run once. Of the next step four
# passes are run, and if the last two are alike, all others are taken to be like them.
#
# Each sign leaves a mark: at which event of the allocator, at which entry of the recorded work.
# Only the marks of one kind are counted in the end.


class Mark(NamedTuple):
    """Where something ended."""

    order: int  # among all marks
    event: int
    entry: int
    who: int = 0  # id of the optimizer


@dataclass
class Steps:
    """The marks that a program left so far, and whether they are enough.

    Args:
        wanted: How many steps are to be run.
        here: Where the program is now: an event of the allocator, and an entry of the work.
        inference: Whether forward passes are what is asked for.
    """

    wanted: int
    here: Callable[[], tuple[int, int]]
    inference: bool = False
    marks: dict[str, list[Mark]] = field(default_factory=lambda: {unit: [] for unit in UNITS})
    optimizers: int = 0  # that the program made for other parameters each
    left: list[int] = field(default_factory=list)  # bytes at the start of each forward pass
    first_pass: Mark | None = None  # where the first forward pass began
    _updating: bool = False
    _ended: bool = False

    def mark(self, unit: str, who: int = 0) -> None:
        """Something of this kind ends here."""
        self.marks[unit].append(self._here(who))

    def _here(self, who: int = 0) -> Mark:
        return Mark(sum(map(len, self.marks.values())), *self.here(), who)

    def passes_forward(self, allocated: int) -> None:
        """A network is called; so the pass before ends."""
        if self.first_pass is None:
            self.first_pass = self._here()
        else:
            self.mark(FORWARD)
        self.left.append(allocated)

    # ---- updates by hand ----

    def written(self) -> None:
        """A leaf is written to outside of an optimizer."""
        self._updating = bool(self.marks[BACKWARD]) and not self.marks[STEP]

    def computed(self) -> None:
        """The program computes with a leaf."""
        if self._updating:
            self._updating = False
            self.mark(UPDATE)

    def end(self) -> None:
        """The program has ended."""
        self.computed()
        if self.first_pass and not self._ended:
            self.mark(FORWARD)
        if self.here()[0] and not any(self.marks.values()):
            self.mark(WHOLE)
        self._ended = True

    # ---- the answer ----

    @property
    def unit(self) -> str:
        """What is counted."""
        if self.inference and self.marks[FORWARD]:
            return FORWARD
        return next((unit for unit in UNITS if self.marks[unit]), STEP)

    @property
    def ends(self) -> list[Mark]:
        """Where each complete step ended."""
        if self.unit == STEP:
            return rounds(self.marks[STEP], self.optimizers, ended=self._ended)
        return self.marks[self.unit]

    @property
    def has_stepped(self) -> bool:
        """Whether a step is complete; a pass is one if there is no sign of training."""
        passed = self.first_pass and (self.inference or not self.optimizers)
        return bool(self.marks[STEP] or self.marks[UPDATE] or passed)

    @property
    def trains(self) -> bool:
        """Whether there is a sign of training."""
        return bool(self.optimizers or any(self.marks[unit] for unit in (STEP, UPDATE, BACKWARD)))

    @property
    def begin(self) -> Mark:
        """Where the last complete step began."""
        ends = self.ends
        if len(ends) > 1:
            return ends[-2]
        first = self.first_pass if self.unit == FORWARD else None
        return first or Mark(-1, 0, 0)

    @property
    def enough(self) -> bool:
        """Whether there are as many as wanted, or too many of what says nothing new."""
        unit = self.unit
        if unit in (STEP, UPDATE):
            return len(self.ends) >= self.wanted
        passes = len(self.marks[unit])
        if unit == BACKWARD:
            return passes >= MANY and not self.optimizers
        if self.trains and not self.inference:
            return False
        return passes > MANY or (passes > max(self.wanted, ALIKE) and self._alike)

    @property
    def _alike(self) -> bool:
        return len(set(self.left[-ALIKE:])) == 1

    def of_last(self, unit: str) -> list[Mark]:
        """The marks of this kind in the last complete step."""
        begin, end = self.begin.order, self.ends[-1].order
        return [mark for mark in self.marks[unit] if begin < mark.order <= end]

    @property
    def accumulates(self) -> int:
        """How many backward passes a step has, if it need not be run again as a whole; else 0."""
        ends = self.ends if self.unit == STEP and len(self.marks[BACKWARD]) > SOME else []
        if not ends or len({mark.who for mark in self.marks[STEP]}) > 1:
            return 0
        passes, now = len(self.of_last(BACKWARD)), self.since(BACKWARD)
        if passes < SOME or len(now) != 4:
            return 0
        first, second = (b.event - a.event for a, b in pairwise(now[1:]))
        return passes if first == second else 0

    def since(self, unit: str) -> list[Mark]:
        """The marks of this kind after the last complete step."""
        end = self.ends[-1].order
        return [mark for mark in self.marks[unit] if mark.order > end]


def rounds(marks: list[Mark], optimizers: int, *, ended: bool = False) -> list[Mark]:
    """The optimizer's step with which each complete round ends."""
    first = marks[0].who if marks else 0
    turns = range(len(marks) - 1)
    length = next((i + 1 for i in turns if marks[i].who != first == marks[i + 1].who), 0)
    if length:
        return marks[length - 1 :: length]
    if any(mark.who != first for mark in marks):
        return marks[-1:] if ended else []
    alone = optimizers <= 1 or ended or len(marks) >= PATIENCE
    return marks if alone else []
