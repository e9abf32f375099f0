"""PyTorch's `module_db`: every module of torch.nn, trained and evaluated, forward and backward."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

from tests.conformance.agree import DisagreementError, agree, attempt
from tests.conformance.compare import Raised
from tests.conformance.gradients import computed, derive, followed
from tests.conformance.twins import twins

# On a card cuDNN runs these, and refuses to go backward through one that is not training.
CUDNN = {"nn.RNN", "nn.GRU", "nn.LSTM"}
REFUSED = Raised("RuntimeError", "cudnn RNN backward can only be called in training mode")
DTYPES = ["float32", "float64"]


@cache
def by_name() -> dict[str, ModuleInfo]:
    return {info.name: info for info in module_db}


def cases() -> Iterator[tuple[str, str]]:
    for name, info in by_name().items():
        supported = info.supported_dtypes("cuda")
        yield from ((name, dtype) for dtype in DTYPES if getattr(torch, dtype) in supported)


def module(name: str, dtype: str, limit: int | None) -> Iterator[Callable[[], bool]]:
    info, kind = by_name()[name], getattr(torch, dtype)
    for training in (True, False):
        torch.manual_seed(0)
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=kind, requires_grad=kind.is_floating_point, training=training
        )
        for given in list(inputs)[:limit]:
            yield lambda given=given, training=training: same(info, given, kind, training)


def same(info: ModuleInfo, given: ModuleInput, dtype: torch.dtype, training: bool) -> bool:
    torch.manual_seed(0)
    made = given.constructor_input
    original = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
    forward = given.forward_input
    arguments = (forward.args, forward.kwargs) if forward else ((), {})

    def run(device: str) -> Any:
        network = moved(original, device)
        args, kwargs = twins(arguments, device)
        answer = attempt(network, *args, **kwargs)
        if isinstance(answer, Raised):
            return answer
        inputs = [*followed(list(network.parameters())), *followed((args, kwargs))]
        grads = attempt(derive, followed(answer), inputs, False)
        if device == "cpu" and info.name in CUDNN and not training:
            grads = REFUSED
        return answer, grads, dict(network.state_dict())

    return computed(agree(run))


def moved(original: torch.nn.Module, device: str) -> torch.nn.Module:
    """A copy, moved as a user moves it; its parameters must stay the same objects."""
    network = copy.deepcopy(original)
    before = list(network.parameters())
    network.to(device)
    after = list(network.parameters())
    if any(a is not b for a, b in zip(before, after, strict=True)):
        raise DisagreementError("Module.to made new Parameters")
    return network
