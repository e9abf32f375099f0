"""PyTorch's `op_db`: every op, in every form, on the samples PyTorch tests it with."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_device_type import onlyCPU
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import noncontiguous_like
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.conformance.agree import SEEDS, DisagreementError, agree, attempt, varies
from tests.conformance.compare import Raised, difference, sharing
from tests.conformance.references import REFERENCES
from tests.conformance.twins import twins

# What these return was never written to, so there is nothing to compare but shape and kind.
UNWRITTEN = {
    "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "resize_", "resize_as_",
}  # fmt: skip
DTYPES = ["float32", "float64", "bfloat16", "float16", "int64", "bool", "complex64"]
# A dtype that CUDA computes in and the CPU may not, and one in which the CPU knows the answer.
WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex64: torch.complex128,
    torch.int64: torch.float64,
    torch.bool: torch.uint8,
}
FLOATS = {torch.float32, torch.float16, torch.bfloat16}
CPU_LACKS = (
    "not implemented for", "Unsupported dtype", "doesn't support tensors of type",
    "does not support complex inputs",
)  # fmt: skip

Concern = Callable[[OpInfo, torch.dtype], bool]

# The database seeds its random ops itself, always alike; here the caller's seed must count.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


@cache
def by_name() -> dict[str, OpInfo]:
    return {op.full_name: op for op in op_db}


def cases(concerns: Concern) -> list[tuple[str, str]]:
    """The (op, dtype) pairs that a check is about."""
    return [
        (name, dtype)
        for name, op in by_name().items()
        for dtype in DTYPES
        if concerns(op, getattr(torch, dtype))
    ]


def on_cuda(op: OpInfo, dtype: torch.dtype) -> bool:
    return onlyCPU not in op.decorators and dtype in op.supported_dtypes("cuda")


def samples(op: OpInfo, dtype: torch.dtype, limit: int | None, grad: bool = False) -> list[Any]:
    found = op.sample_inputs("cpu", dtype, requires_grad=grad)
    return [kept(op, s) for s in list(filter(runs_on_cuda, found))[:limit]]


def runs_on_cuda(sample: SampleInput) -> bool:
    """Whether the sample names no driver for linear algebra that CUDA lacks."""
    return sample.kwargs.get("driver") in (None, "gels")


def kept(op: OpInfo, sample: SampleInput) -> SampleInput:
    """Marks the tensors that this op wants on the CPU whatever the device is."""
    if op.name == "tensor_split":
        for tensor in (a for a in sample.args if isinstance(a, torch.Tensor)):
            tensor.stays_on_cpu = True
    return sample


def call(function: Callable[..., Any], sample: SampleInput, device: str) -> tuple[Any, Any]:
    """The op's answer, and its arguments as they are afterwards."""
    arguments = twins((sample.input, sample.args, sample.kwargs), device)
    first, rest, named = arguments
    # A factory that is given neither tensor nor device makes its result on the default device.
    nowhere = not any(isinstance(x, torch.Tensor | torch.device) for x in tree_leaves(arguments))
    with torch.device(device) if nowhere else nullcontext():
        return attempt(function, first, *rest, **named), arguments


def forward(op: OpInfo, dtype: torch.dtype, limit: int | None) -> Iterator[Callable[[], bool]]:
    for sample in samples(op, dtype, limit):
        yield lambda sample=sample: same_forward(op, sample, dtype)


def noncontiguous(
    op: OpInfo, dtype: torch.dtype, limit: int | None
) -> Iterator[Callable[[], bool]]:
    for sample in samples(op, dtype, limit or 3):
        loose = kept(op, sample.transform(loosened))
        yield lambda sample=loose: same_forward(op, sample, dtype)


def loosened(leaf: Any) -> Any:
    strided = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    return noncontiguous_like(leaf) if strided else leaf


def same_forward(op: OpInfo, sample: SampleInput, dtype: torch.dtype) -> bool:
    def run(device: str) -> Any:
        answer, arguments = call(op, sample, device)
        return answer, arguments, sharing(arguments, answer)

    if op.full_name in REFERENCES:
        return same_as_reference(op, sample)
    if dtype in WIDER and cpu_lacks(call(op, sample, "cpu")[0]):
        return same_as_rounded(op, sample, dtype)
    return not isinstance(agree(run, values=op.name not in UNWRITTEN)[0], Raised)


def cpu_lacks(answer: Any) -> bool:
    return isinstance(answer, Raised) and any(sign in answer.text for sign in CPU_LACKS)


def same_as_reference(op: OpInfo, sample: SampleInput) -> bool:
    """Only its first result is compared: the others are the kernel's own notes."""
    # Exponents of the database's large numbers lose more digits than a comparison can forgive.
    calm = sample.transform(lambda t: t / 8 if torch.is_tensor(t) and t.dtype in FLOATS else t)
    expected, got = REFERENCES[op.full_name](calm), call(op, calm, "cuda")[0]
    if isinstance(got, Raised):
        raise DisagreementError(f"expected an answer, got {got.type}: {got.text}")
    if expected is None:
        return False
    first = got[0] if isinstance(got, tuple) else got
    if found := difference(expected, first, close=True):
        raise DisagreementError(found)
    return True


def same_as_rounded(op: OpInfo, sample: SampleInput, dtype: torch.dtype) -> bool:
    """What CUDA can and the CPU cannot: the CPU's answer in a wider dtype, rounded."""

    def widened(leaf: Any) -> Any:
        if leaf is dtype:
            return WIDER[dtype]
        return leaf.to(WIDER[dtype]) if getattr(leaf, "dtype", None) is dtype else leaf

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        narrow = {WIDER[dtype]: dtype, torch.complex64: torch.complex32}  # FFTs of half
        return tensor.to(narrow.get(tensor.dtype, tensor.dtype))

    def wide(device: str) -> Any:
        return tree_map_only(torch.Tensor, rounded, call(op, sample.transform(widened), device)[0])

    expected, got = wide("cpu"), call(op, sample, "cuda")[0]
    if isinstance(expected, Raised) and not isinstance(got, Raised):
        return False  # the CPU cannot do it in any dtype, so nothing is known
    random = varies(wide, "cpu", SEEDS)
    if found := difference(expected, got, values=not random, close=True):
        raise DisagreementError(f"against {WIDER[dtype]}, rounded: {found}")
    return True


def inplace(op: OpInfo, dtype: torch.dtype, limit: int | None) -> Iterator[Callable[[], bool]]:
    def same(sample: SampleInput) -> bool:
        def run(device: str) -> Any:
            answer, arguments = call(op.inplace_variant, sample, device)
            is_its_argument = answer is arguments[0]
            return answer, arguments, is_its_argument, sharing(arguments, answer)

        known_there = not cpu_lacks(run("cpu")[0])
        return known_there and not isinstance(agree(run)[0], Raised)

    for sample in samples(op, dtype, limit):
        if not sample.broadcasts_input:
            yield lambda sample=sample: same(sample)


def out(op: OpInfo, dtype: torch.dtype, limit: int | None) -> Iterator[Callable[[], bool]]:
    """Into tensors of the right kind, and into empty ones, which are resized."""

    def same(sample: SampleInput, room: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        fresh = call(op, sample, "cpu")[0]
        if isinstance(fresh, Raised):
            return False
        wanted = tree_map_only(torch.Tensor, room, fresh)

        def run(device: str) -> Any:
            given = twins(wanted, device)
            with_out = SampleInput(sample.input, args=sample.args, kwargs=sample.kwargs)
            answer, _ = call(lambda *a, **k: op(*a, **k, out=given), with_out, device)
            return answer, given, sharing(given, answer)

        return not isinstance(agree(run, values=op.name not in UNWRITTEN)[0], Raised)

    for sample in samples(op, dtype, limit):
        yield lambda sample=sample: same(sample, lambda t: torch.zeros_like(t.detach()))
        if getattr(sample.input, "layout", torch.strided) is torch.strided:
            yield lambda sample=sample: same(sample, lambda t: t.detach().new_empty(0))


def has_cpu(op: OpInfo) -> bool:
    return op.full_name not in REFERENCES


CHECKS: dict[str, tuple[Concern, Callable[..., Iterator[Callable[[], bool]]]]] = {
    "forward": (on_cuda, forward),
    "noncontiguous": (
        lambda op, d: on_cuda(op, d) and d in (torch.float32, torch.complex64) and has_cpu(op),
        noncontiguous,
    ),
    "inplace": (lambda op, d: on_cuda(op, d) and op.inplace_variant is not None, inplace),
    "out": (lambda op, d: on_cuda(op, d) and op.supports_out, out),
}
