"""What it means that the CPU and the GPU agree about one computation."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.conformance.cases import ROUNDING
from tests.conformance.compare import Raised, difference
from tests.conformance.twins import twins

Run = Callable[[str], Any]  # the device's name -> whatever the computation gives there
SEEDS = range(1, 17)
REPEATS = [0] * 4


class DisagreementError(AssertionError):
    """How the GPU's answer is not the CPU's."""


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return Raised.by(error)


def seeded(run: Run, device: str, seed: int) -> Any:
    torch.manual_seed(seed)
    return run(device)


def agree(run: Run, *, values: bool = True) -> Any:
    """Compares `run` on both devices bit for bit and gives back the CPU's answer.

    Only an answer that is not given twice alike may differ: by rounding if equal runs differ, and
    as `random_difference` says if the CPU's depends on the seed.
    """
    expected, got = seeded(run, "cpu", 0), seeded(run, "cuda", 0)
    found = difference(expected, got, values=values)
    if found and values:
        if varies(run, "cpu", REPEATS) or varies(run, "cuda", REPEATS):
            found = difference(expected, got, close=True)
        elif varies(run, "cpu", SEEDS):
            found = random_difference(run, expected, got)
    if found:
        rounding = difference(expected, got, close=True) is None
        raise DisagreementError(found + ROUNDING if rounding else found)
    return expected


def varies(run: Run, device: str, seeds: Iterable[int]) -> bool:
    first = twins(seeded(run, device, 0), "cpu")
    again = (twins(seeded(run, device, seed), "cpu") for seed in seeds)
    return any(difference(first, answer, device="cpu") for answer in again)


def random_difference(run: Run, expected: Any, got: Any) -> str | None:
    """Random numbers: the same kind of result, moved by another seed, in range."""
    if found := difference(expected, got, values=False):
        return found
    if not varies(run, "cuda", SEEDS):
        return "every seed gave the same result"
    return out_of_range(run)


def out_of_range(run: Run) -> str | None:
    cpu = [numbers(seeded(run, "cpu", seed)) for seed in SEEDS[:8]]
    gpu = [numbers(seeded(run, "cuda", seed)) for seed in SEEDS[:8]]
    for seen, mine in zip(zip(*cpu, strict=True), zip(*gpu, strict=True), strict=True):
        seen, middle = torch.cat(seen), torch.cat(mine).nanmedian()
        if seen.numel() and not seen.nan_to_num().min() <= middle <= seen.nan_to_num().max():
            return f"the middle value {middle} lies outside the CPU's {seen.min()} to {seen.max()}"
    return None


def numbers(result: Any) -> list[torch.Tensor]:
    tensors = [t.detach().cpu() for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
    real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return [t.double().flatten() for t in real]
