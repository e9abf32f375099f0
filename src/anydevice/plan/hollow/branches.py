"""Which way a program goes at a branch on a value that a hollow GPU does not have."""

from __future__ import annotations

import dis
import linecache
import sys
from collections import deque
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FrameType

from anydevice.virtual.compiled.tracing import as_written

# Note [A branch on an unknown value]
# The bytecode of the branch says more than the value would. From the strongest reason down:
#
# - A check passes. If one way raises an error, fails an assertion or exits, a program that works
#   goes the other way: `assert torch.isfinite(loss)`, the argument checks of torch.distributions.
# - A `while` loop continues, since training is what it does, until it has asked PATIENCE times.
# - A guard is not needed: a body that ends by `continue`, `break` or `return` is for the unusual.
#   It is skipped, and the answer says so with the line.
# - A branch that only reports makes no difference: it prints or logs. It is skipped.
# - All others might change what the steps do. They are `undecided`: values.py says what follows.
#
# `if` skips its body in all of these, which is not always where zero would lead.
#
# PyTorch's own optimizers branch, too: L-BFGS keeps a step only where the loss curves upwards, and
# searches along a line until the slope is small. `USUAL` has what they find in a training that goes
# well; so do solvers of differential equations, which accept a step whose error is small.
#
# Where torch.compile breaks a graph at a branch, Dynamo's code asks. The branch is looked up by its
# line, in the code as it was written.
#
# A function may return `bool(x)`, as torch.distributions does since 2.15. Then the branch is that
# of its caller.

ENDS = ("exit", "quit", "_exit", "abort")
REPORTS = {
    *("print", "write", "flush", "log", "debug", "info", "warning", "warn", "error", "exception"),
    *("append", "format", "item", "round", "float", "int", "str", "len", "min", "max", "abs"),
    *("set_description", "set_postfix", "add_scalar", "add_scalars", "update", "time"),
}
USUAL = {  # by file and line
    "torch/optim/lbfgs.py": {
        "if ys > 1e-10:": True,
        "if abs(gtd_new) <= -c2 * gtd:": True,
        "low_pos, high_pos = (0, 1) if bracket_f[0] <= bracket_f[-1] else (1, 0)": True,
    },
    "torchdiffeq/_impl/rk_common.py": {"if accept_step:": True},
}
PATIENCE = 100
LEADS_ON = ("FOR_ITER", "RAISE", "RERAISE", "RETURN_")


@dataclass(frozen=True)
class Branch:
    """A conditional jump of some code, and the instruction at which each way begins."""

    code: CodeType
    at: int  # its place among the instructions
    jumps_if: bool  # the truth for which it jumps
    target: int  # where it jumps to
    on: int  # where it continues if it does not jump

    @property
    def line(self) -> int:
        """Its line in the file."""
        return _lines(self.code)[self.at]

    @property
    def skips(self) -> bool:
        """The truth that leaves out the body of an `if`."""
        return self.jumps_if

    @cached_property
    def check(self) -> bool | None:
        """The truth for which a check passes; None if this is no check."""
        jump, on = _fails(self.code, self.target), _fails(self.code, self.on)
        return None if jump == on else self.jumps_if != jump

    @property
    def usual(self) -> bool | None:
        """What PyTorch's own code finds here; None if that is not known."""
        line = linecache.getline(self.code.co_filename, self.line)
        file = "/".join(Path(self.code.co_filename).parts[-3:])
        return USUAL.get(file, {}).get(line.partition("  #")[0].strip())

    @cached_property
    def loops(self) -> bool | None:
        """The truth for which a `while` loop continues; None if this is not its condition."""
        line = _lines(self.code)[self.at]
        if not linecache.getline(self.code.co_filename, line).lstrip().startswith("while"):
            return None
        jump = _way_back(self.code, self.target, line)
        on = _way_back(self.code, self.on, line)
        return None if jump == on else self.jumps_if == (jump < on)

    @cached_property
    def guards(self) -> bool:
        """Whether its body leaves: by `continue`, `break` or `return`."""
        leave = ("JUMP_BACKWARD", "RETURN_")
        body = _straight(self.code, self.on)[-1]
        other = _instructions(self.code)[self.target]
        joined = other.opname == body.opname and other.argval == body.argval
        return self.target > self.at and body.opname.startswith(leave) and not joined

    @cached_property
    def body(self) -> list[dis.Instruction]:
        """The instructions of its body, and of its `else`."""
        steps = _instructions(self.code)
        if self.target <= self.at:  # the last statement of a loop
            body = _straight(self.code, self.on)
        else:
            body = steps[self.on : self.target]
        last = body[-1] if body else None
        if last and last.opname == "JUMP_FORWARD":
            return [*body[:-1], *steps[self.target : _places(self.code)[last.argval]]]
        ends_a_loop = last and last.opname.startswith("JUMP_BACKWARD") and not self.guards
        return body[:-1] if ends_a_loop else body

    @cached_property
    def only_reports(self) -> bool:
        """Whether its body, and an `else`, do nothing but report."""
        return _report(self.body)


def branch_of(frame: FrameType) -> tuple[FrameType, Branch | None]:
    """The frame and its branch on the truth that this frame asks for; None if it is kept."""
    written = as_written(frame.f_code)
    if written is not frame.f_code:
        return frame, _branch_of_line(written, frame.f_lineno)
    place = _place(frame)
    if _calls_bool(frame.f_code, place):
        place += 1
        while frame.f_back and _instructions(frame.f_code)[place].opname == "RETURN_VALUE":
            frame = frame.f_back
            place = _place(frame) + 1
    return frame, _branch_at(frame.f_code, place)


@cache
def _branch_of_line(code: CodeType, line: int) -> Branch | None:
    """The branch of a line, in whose code Dynamo's asks for a truth: the last if it has several."""
    jumps = [
        place
        for place, step in enumerate(_instructions(code))
        if "JUMP" in step.opname and "_IF_" in step.opname and _lines(code)[place] == line
    ]
    return _branch_at(code, jumps[-1]) if jumps else None


@cache
def _branch_at(code: CodeType, place: int) -> Branch | None:
    steps, at = _instructions(code), place
    if steps[at].opname == "COMPARE_OP" and steps[at].argrepr.startswith("bool("):
        at += 1  # Python 3.13
    elif steps[at].opname in ("TO_BOOL", "UNARY_NOT"):
        at += 1
        if steps[at].opname == "UNARY_NOT":
            return None
    step = steps[at]
    if "JUMP" not in step.opname or "_IF_" not in step.opname or "NONE" in step.opname:
        return None
    jumps_if, target = "_IF_TRUE" in step.opname, _places(code)[step.argval]
    on = at + 1 + (steps[at + 1].opname == "NOT_TAKEN")  # Python 3.14
    if steps[on].opname == "JUMP_BACKWARD" and steps[on].positions == step.positions:
        # Since Python 3.12 no branch jumps back: it jumps over a jump that does.
        jumps_if, target, on = not jumps_if, _places(code)[steps[on].argval], target
    return Branch(code, at, jumps_if, target, on)


@cache
def _calls_bool(code: CodeType, place: int) -> bool:
    """Whether the instruction is the call in `bool(x)`: its name is where the call begins."""
    call = _instructions(code)[place]
    return call.opname == "CALL" and any(
        step.opname == "LOAD_GLOBAL" and step.argval == "bool" and _begins(step) == _begins(call)
        for step in _instructions(code)[:place]
    )


def _begins(step: dis.Instruction) -> tuple[int | None, int | None] | None:
    return (step.positions.lineno, step.positions.col_offset) if step.positions else None


@cache
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


@cache
def _places(code: CodeType) -> dict[int, int]:
    return {step.offset: place for place, step in enumerate(_instructions(code))}


def _place(frame: FrameType) -> int:
    """The place of the instruction that a frame is at, which may have gone past its beginning."""
    places, offset = _places(frame.f_code), frame.f_lasti
    while offset not in places:
        offset -= 2
    place = places[offset]
    is_first_half = _instructions(frame.f_code)[place].opname == "PRECALL"  # Python 3.11
    return place + is_first_half


@cache
def _lines(code: CodeType) -> list[int]:
    """The line of each instruction."""
    return [step.positions.lineno or 0 if step.positions else 0 for step in _instructions(code)]


def _fails(code: CodeType, place: int) -> bool:
    """Whether the straight way from here ends in an error or leaves the program."""
    ends, before = False, None
    for step in _straight(code, place):
        if step.opname in ("RAISE_VARARGS", "RERAISE"):
            return True
        ends = ends or (step.opname.startswith("LOAD_") and step.argval in ENDS)
        ends = ends or (before == "_assert" and step.argval is False)  # torch._assert(False, …)
        before = before if step.opname == "PUSH_NULL" else step.argval  # Python 3.13
        if ends and step.opname.startswith("CALL"):
            return True
    return False


def _straight(code: CodeType, place: int) -> list[dis.Instruction]:
    """The instructions from here up to the first that may lead to two places, or back."""
    steps, found = _instructions(code), []
    while place < len(steps):
        step = steps[place]
        found.append(step)
        if step.opname == "JUMP_FORWARD":
            place = _places(code)[step.argval]
        elif "JUMP" in step.opname or step.opname.startswith(LEADS_ON):
            break
        else:
            place += 1
    return found


def _way_back(code: CodeType, start: int, line: int) -> float:
    """How many instructions it is from here to a branch of this line again."""
    steps, lines = _instructions(code), _lines(code)
    seen, queue = {start}, deque([(start, 0)])
    while queue:
        place, far = queue.popleft()
        step = steps[place]
        jumps = "JUMP" in step.opname or step.opname in ("FOR_ITER", "SEND")
        if jumps and "_IF_" in step.opname and lines[place] == line:
            return far
        ways = [_places(code)[step.argval]] if jumps else []
        ends = step.opname.startswith(("RETURN_", "RAISE", "RERAISE"))
        if not ends and (not jumps or "_IF_" in step.opname or step.opname in ("FOR_ITER", "SEND")):
            ways.append(place + 1)
        for way in ways:
            if way < len(steps) and way not in seen:
                seen.add(way)
                queue.append((way, far + 1))
    return float("inf")


def _report(steps: list[dis.Instruction]) -> bool:
    """Whether these instructions call nothing but what reports, keep nothing, and lead nowhere."""
    elsewhere = ("RETURN_", "RAISE", "STORE_", "DELETE_", "YIELD", "FOR_ITER")
    leaves = any("JUMP" in step.opname or step.opname.startswith(elsewhere) for step in steps)
    return not leaves and REPORTS.issuperset(_called(steps))


def _called(steps: list[dis.Instruction]) -> list[str]:
    """The names of the functions and methods that are called."""
    names = []
    for place, step in enumerate(steps):
        before_it = step.opname == "PUSH_NULL" and sys.version_info < (3, 13)
        if step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and "NULL" in step.argrepr):
            names.append(str(step.argval))
        elif step.opname == "LOAD_GLOBAL" and "NULL" in step.argrepr:
            names.append(_last_name(steps[place:]))
        elif before_it:
            names.append(_last_name(steps[place + 1 :]))
        elif step.opname == "PUSH_NULL":
            names.append(str(steps[place - 1].argval))
    return names


def _last_name(steps: list[dis.Instruction]) -> str:
    """`write` of `sys.stderr.write`: of a name and the attributes after it."""
    name = str(steps[0].argval)
    for step in steps[1:]:
        if step.opname != "LOAD_ATTR":
            break
        name = str(step.argval)
    return name
