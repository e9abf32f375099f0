"""PyTorch's `optim_db`: five steps of every optimizer, in each of its implementations."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db
from torch.utils._pytree import tree_map_only

from tests.conformance.agree import DisagreementError
from tests.conformance.compare import difference
from tests.conformance.twins import twins

STEPS = 5
SHAPES = [(3, 4), (5, 6), (4, 3)]  # matrices alone: Muon takes nothing else
LOOPS_BY_ITSELF = {"Adafactor"}  # the others take foreach on a GPU and a loop on a CPU
STEP_ON_GPU = {"ASGD"}  # the others count on the CPU unless captured or fused


@cache
def by_name() -> dict[str, OptimizerInfo]:
    return {info.name: info for info in optim_db}


def cases() -> Iterator[tuple[str, str]]:
    yield from ((name, "float32") for name in by_name())


def optimizer(name: str, dtype: str, limit: int | None) -> Iterator[Callable[[], bool]]:
    info = by_name()[name]
    for given in info.optim_inputs_func(device="cuda")[:limit]:
        for way in ways(info):
            yield lambda given=given, way=way: same(info, given, way)
    yield lambda: same(info, OptimizerInput(None, {}), {})


def ways(info: OptimizerInfo) -> list[dict[str, bool]]:
    fused = ["fused"] if "cuda" in info.supports_fused_on else []
    loop = [{"foreach": False}] if "foreach" in info.supported_impls else [{}]
    named = [w for w in ("foreach", "differentiable") if w in info.supported_impls] + fused
    return [*loop, *({way: True} for way in named)]


def same(info: OptimizerInfo, given: OptimizerInput, way: dict[str, bool]) -> bool:
    kwargs = given.kwargs | way
    gpu = stepped(info, kwargs, "cuda")
    chooses = not way and "foreach" in info.supported_impls and info.name not in LOOPS_BY_ITSELF
    capturable = kwargs.get("capturable", False)
    plain = uncaptured(kwargs) if capturable else kwargs
    cpu = stepped(info, plain | ({"foreach": True} if chooses else {}), "cpu")
    step_on_gpu = capturable or way.get("fused", False) or info.name in STEP_ON_GPU
    check_state_devices(gpu[1], step_on_gpu)
    if found := difference(cpu[0], gpu[0], close=capturable):
        raise DisagreementError(f"{given.desc or 'default'}, {way}: {found}")
    return True


def uncaptured(kwargs: dict[str, Any]) -> dict[str, Any]:
    """A CPU optimizer knows no capturable, whose arithmetic is in another order."""
    plain = tree_map_only(torch.Tensor, float, kwargs)
    return plain | {"capturable": False}


def stepped(info: OptimizerInfo, kwargs: dict[str, Any], device: str) -> tuple[Any, Any]:
    """The parameters after each step, and the optimizer's state at the end."""
    numbers = torch.Generator().manual_seed(3)
    made = [torch.randn(shape, generator=numbers) for shape in SHAPES]
    parameters = [torch.nn.Parameter(twins(p, device)) for p in made]
    if kwargs.get("differentiable"):  # steps that autograd follows cannot be taken by leaves
        parameters = [p.clone() for p in parameters]
    # A learning rate given as a tensor is the user's own, and may stay on the CPU.
    optimizer = info.optim_cls(parameters, **own_copy(kwargs))
    history = []
    for _ in range(STEPS):
        for parameter in parameters:
            grad = torch.randn(parameter.shape, generator=numbers)
            grad = grad.to_sparse() if info.only_supports_sparse_grads else grad
            parameter.grad = twins(grad, device)
        optimizer.step((lambda: loss(parameters)) if info.step_requires_closure else None)
        history.append([p.detach().clone() for p in parameters])
    return history, optimizer.state


def own_copy(kwargs: dict[str, Any]) -> dict[str, Any]:
    return tree_map_only(torch.Tensor, torch.clone, kwargs)


def loss(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    for parameter in parameters:
        parameter.grad = None
    total = torch.stack([(p * p).sum() for p in parameters]).sum()
    total.backward()
    return total


def check_state_devices(state: Any, step_on_gpu: bool) -> None:
    """As on a card: what has a parameter's shape lies beside it, the step count mostly does not."""
    for entry in state.values():
        for key, value in entry.items():
            if isinstance(value, torch.Tensor) and (value.dim() or key == "step"):
                wanted = "cuda" if key != "step" or step_on_gpu else "cpu"
                if value.device.type != wanted:
                    raise DisagreementError(
                        f"state {key!r} is on {value.device}, on a card on {wanted}"
                    )
