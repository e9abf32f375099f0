"""A program on both sides: each op is applied to the CPU's values and to the GPUs'."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.testing import make_tensor
from torch.utils._pytree import tree_leaves

from tests.conformance.agree import DisagreementError, attempt
from tests.conformance.compare import Raised, sharing
from tests.conformance.ops import cpu_lacks
from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.values import (
    DEVICES,
    Twin,
    bring_together,
    is_leaf,
    side,
    unlike,
)
from tests.conformance.twins import twins

DTYPES = [
    torch.float32, torch.float32, torch.float32, torch.float64, torch.int64, torch.bool,
    torch.float16, torch.bfloat16, torch.complex64, torch.int32, torch.uint8, torch.int8,
    torch.int16, torch.complex128,
]  # fmt: skip
MOST_VALUES = 24
LARGEST = 40_000  # elements, of what an op may be given


class Running:
    """The values of a program and the contexts that it is in."""

    def __init__(self) -> None:
        self.values: list[Twin] = []
        self.trace: list[str] = []
        self.contexts: list[tuple[str, ExitStack]] = []
        self._made = 0
        torch.manual_seed(0)

    # ---- values

    def add(self, cpu: torch.Tensor, gpu: torch.Tensor, device: str) -> Twin:
        value = Twin(f"v{self._made}", cpu, gpu, device)
        self._made += 1
        if cpu.numel() <= LARGEST:
            self.values.append(value)
        if len(self.values) > MOST_VALUES:
            del self.values[0]
        return value

    def new(
        self,
        choices: Choices,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: str,
        *,
        low: float | None = None,
        high: float | None = None,
        grad: bool = False,
    ) -> Twin:
        """Random numbers in one of several layouts, from `low` to `high`."""
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            made = make_tensor(tuple(shape), dtype=dtype, device="cpu", low=low, high=high)
            made = twins(laid_out(choices, made), "cpu")
            copy = twins(made, device)
        for each in (made, copy) if grad else ():
            each.requires_grad_()
        value = self.add(made, copy, device)
        self.trace.append(f"{value.name} = random: {value.described()}")
        return value

    def pick(self, choices: Choices, suits: Callable[[Twin], bool] = lambda value: True) -> Twin:
        """One of the strided values that suit, or a new one."""
        fitting = [v for v in self.values if v.strided and suits(v)]
        if fitting and not choices.once_in(12):
            return fitting[-1 - choices.below(len(fitting))]
        for _ in range(8):
            value = self.random(choices)
            if suits(value):
                return value
        value = self.new(choices, (2, 3), torch.float32, DEVICES[0])
        return value if suits(value) else self.new(choices, (3, 3), torch.float32, DEVICES[0])

    def random(self, choices: Choices) -> Twin:
        shape = [choices.among([3, 2, 4, 1, 5, 0]) for _ in range(choices.among([2, 1, 3, 4, 0]))]
        if choices.once_in(30):
            shape = [choices.among([300, 5000]), choices.among([7, 1])]
        dtype, device = choices.among(DTYPES), choices.among(DEVICES)
        grad = (dtype.is_floating_point or dtype.is_complex) and choices.once_in(3)
        return self.new(choices, shape, dtype, device, grad=grad)

    # ---- ops

    def apply(
        self,
        shown: str,
        function: Callable[..., Any],
        *args: Any,
        on: str | None = None,
        compare: str = "exact",
        **kwargs: Any,
    ) -> Any:
        """Calls `function` on both sides; what it gives is a value of the program from then on.

        `compare` is "exact", "close" (the kernel is not the CPU's) or "random" (kind and place
        alone). The results belong on the device `on`; if it is left out, on the first argument's.
        """
        named = [f"{name}={value!r}" for name, value in kwargs.items()]
        self.trace.append(f"{shown}({', '.join([*map(repr, args), *named])})")
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Twin)]
        device = on or (given[0].device if given else "cpu")
        left, right = side((args, kwargs), "cpu"), side((args, kwargs), "gpu")
        expected = attempt(function, *left[0], **left[1])
        got = attempt(function, *right[0], **right[1])
        if isinstance(expected, Raised) or isinstance(got, Raised):
            return self._refused(expected, got, given)
        self._same(expected, got, device, compare)
        if sharing(left, expected) != sharing(right, got):
            self.fail("the results share other memory with the arguments than on the CPU")
        results = self._kept(expected, got, given, device)
        if compare != "exact":
            for value in [*results, *given]:
                bring_together(value)
        if results:
            self.trace[-1] = f"{', '.join(map(repr, results))} = {self.trace[-1]}"
        return results

    def _refused(self, expected: Any, got: Any, given: list[Twin]) -> None:
        self.trace[-1] += "  # refused"
        if not isinstance(got, Raised) and cpu_lacks(expected):
            with torch.inference_mode():  # in place, perhaps
                for value in given:
                    bring_together(value)
            return
        if not isinstance(got, Raised):
            self.fail(f"expected {expected.type}: {expected.text}; got an answer")
        if not isinstance(expected, Raised):
            self.fail(f"expected an answer, got {got.type}: {got.text}")
        # A card's kernel finds a wrong value later, and a dtype without a kernel sooner.
        of_card = any(
            t in got.text for t in ("device-side assert triggered", "not implemented for")
        )
        if expected.type != got.type and not of_card:
            self.fail(f"expected {expected.type}: {expected.text}; got {got.type}: {got.text}")

    def _same(self, expected: Any, got: Any, device: str, compare: str) -> None:
        if compare == "exact" and (found := unlike(expected, got, device)):
            self.fail(found)
        if compare == "close" and (found := unlike(expected, got, device, close=True)):
            self.fail(found)
        if compare == "random" and (found := unlike(expected, got, device, values=False)):
            self.fail(found)

    def _kept(self, expected: Any, got: Any, given: list[Twin], device: str) -> list[Twin]:
        """The results as values; one that is an argument is that argument on both sides."""
        results = []
        for left, right in zip(tree_leaves(expected), tree_leaves(got), strict=True):
            if not isinstance(left, torch.Tensor):
                continue
            of_cpu = [value.name for value in given if value.cpu is left]
            of_gpu = [value.name for value in given if value.gpu is right]
            if of_cpu != of_gpu:
                self.fail(f"the result is {of_gpu or 'new'}, expected {of_cpu or 'a new one'}")
            if not of_cpu:
                results.append(self.add(left, right, device))
        return results

    def check(self, value: Twin, *, close: bool = False) -> None:
        """Both sides of a value, and of its gradient, are equal."""
        if found := unlike(value.cpu, value.gpu, value.device, close=close):
            self.fail(f"{value.name}: {found}")
        graded = is_leaf(value.cpu) is True and value.cpu.requires_grad
        if graded and (found := unlike(value.cpu.grad, value.gpu.grad, value.device)):
            self.fail(f"the gradient of {value.name}: {found}")

    def fail(self, text: str) -> None:
        raise DisagreementError(f"{text}, by {self.trace[-1]}")

    # ---- contexts

    def enter(self, name: str, stack: ExitStack) -> None:
        self.contexts.append((name, stack))
        self.trace.append(f"enter {name}")

    def leave(self) -> None:
        if self.contexts:
            name, stack = self.contexts.pop()
            self.trace.append(f"leave {name}")
            stack.close()

    def inside(self, *names: str) -> bool:
        return any(name in names for name, _ in self.contexts)


def laid_out(choices: Choices, tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with other strides, or in a larger storage."""
    layout = choices.among(
        ["contiguous", "contiguous", "transposed", "sliced", "channels_last", "offset", "expanded"]
    )
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and tensor.dim():
        return torch.stack([tensor, tensor], -1).flatten(-2)[..., ::2]
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "offset" and tensor.dim():
        return torch.cat([tensor[:1], tensor])[1 if len(tensor) else 0 :]
    if layout == "expanded" and tensor.dim() and len(tensor):
        return tensor[:1].expand(tensor.shape)
    return tensor
