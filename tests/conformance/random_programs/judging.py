"""Runs a whole program and says what is wrong with it, if anything is."""

import gc
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.conformance.agree import DisagreementError
from tests.conformance.random_programs import BATCH, BATCHES, accounting
from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.drawing import drawn
from tests.conformance.random_programs.kinds import KINDS
from tests.conformance.random_programs.programs import Program
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.values import Twin

GPUS = 2


def batches() -> Iterator[tuple[str, str]]:
    """The cases of the suite: each is a seed."""
    yield from ((f"seed {number}", "-") for number in range(BATCHES))


def batch(name: str, dtype: str, limit: int | None) -> Iterator[Callable[[], bool]]:
    for program in drawn(int(name.removeprefix("seed ")), BATCH):
        yield lambda program=program: judge(program)


def failure(program: Program) -> str | None:
    """What is wrong with it, in the words of its error."""
    try:
        judge(program)
    except DisagreementError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return None


def judge(program: Program) -> bool:
    """Raises a DisagreementError, with the program as it ran, if the two sides are not alike."""
    running = Running()
    if any(allocated()):
        gc.collect()  # circles in the graphs of earlier programs
    before = allocated()
    try:
        follow(running, program)
        count(running, before)
        return True
    except DisagreementError as error:
        raise DisagreementError("\n".join([str(error), *running.trace])) from None
    finally:
        while running.contexts:
            running.leave()
        running.values.clear()


def follow(running: Running, program: Program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in program:
            KINDS[step.kind][0](running, Choices(step.data))
        while running.contexts:
            running.leave()
        running.trace.append("at the end")
        for value in running.values:
            running.check(value)


def count(running: Running, before: list[int]) -> None:
    """The memory that the values hold, and none once they are gone."""
    sides = [[weakref.ref(getattr(v, side)) for v in running.values] for side in ("cpu", "gpu")]
    storages = [[storage_of(getattr(v, side)) for v in running.values] for side in ("cpu", "gpu")]
    forget_graphs(running.values)
    try:
        accounting.check(running.values, before)
    except DisagreementError:
        gc.collect()
        living = [[ref() is not None for ref in refs] for refs in sides]
        if living[0] != living[1]:
            raise DisagreementError("other values stay alive than on the CPU") from None
        if any(living[0]):
            return  # a circle in autograd's graph, which PyTorch itself never frees
        accounting.check(running.values, before)
    running.values.clear()
    if allocated() != before:
        gc.collect()
    living = [[ref is not None and not ref.expired() for ref in refs] for refs in storages]
    if any(living[0]) and living[0] == living[1]:
        return  # such a circle around what autograd saved
    if (left := allocated()) != before:
        raise DisagreementError(
            f"{left} bytes are allocated after the last value is gone, {before} before"
        )


def storage_of(tensor: torch.Tensor) -> StorageWeakRef | None:
    return StorageWeakRef(tensor.untyped_storage()) if tensor.layout is torch.strided else None


def forget_graphs(values: list[Twin]) -> None:
    """What autograd keeps, and the gradients."""
    for value in values:
        value.cpu, value.gpu = value.cpu.detach(), value.gpu.detach()


def allocated() -> list[int]:
    return [torch.cuda.memory_allocated(device) for device in range(GPUS)]
