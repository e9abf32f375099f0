"""The calls that were recorded on PyTorch's CUDA build, and are made again on virtual GPUs.

`devices` and `modules` put each tensor of each op and module in turn where it does not belong,
`dtypes` calls one op after the other in each dtype. All yield a key and what was raised, if
anything. This module imports nothing of the project, since it runs in another environment, too.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

SAMPLES = {"devices": 3, "modules": 2}
Outcome = tuple[list[Any], str | None]


def raised(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except Exception as error:
        text = str(error).split("\nException raised from")[0].split("\nTo execute this test")[0]
        return " ".join(f"{type(error).__name__}: {text}".split())[:700]
    return None


def is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def placed(leaves: list[Any], where: str, which: int) -> list[Any]:
    """Copies, all on the first GPU but for one: on the CPU, on another GPU, or alone there."""
    home, away = {
        "home": ("cuda:0", "cuda:0"), "cpu": ("cuda:0", "cpu"), "gpu1": ("cuda:0", "cuda:1"),
        "only": ("cpu", "cuda:0"),
    }[where]  # fmt: skip
    places = [i for i, leaf in enumerate(leaves) if is_tensor(leaf)]
    return [
        leaf.detach().clone().to(away if i == places[which] else home) if is_tensor(leaf) else leaf
        for i, leaf in enumerate(leaves)
    ]


def sample_dtype(op: Any) -> torch.dtype:
    known = op.supported_dtypes("cuda")
    usual = (torch.float32, torch.int64, torch.complex64, torch.float16, torch.bool)
    return next(dtype for dtype in (*usual, *known) if dtype in known)


def devices(op: Any) -> Iterator[Outcome]:
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", sample_dtype(op), requires_grad=False)
    for number, sample in enumerate(list(samples)[: SAMPLES["devices"]]):
        leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        count = sum(map(is_tensor, leaves))
        if count < 2:
            continue
        yield from _each_place(number, leaves, spec, count, lambda i, a, k: op.op(i, *a, **k))


def _each_place(
    number: int, leaves: list[Any], spec: Any, count: int, call: Callable[..., Any]
) -> Iterator[Outcome]:
    for which in range(count):
        for where in ("home", "cpu", "gpu1", "only"):
            if where == "home" and which:
                continue
            first, args, kwargs = tree_unflatten(placed(leaves, where, which), spec)
            yield (
                [number, where, which],
                raised(lambda i=first, a=args, k=kwargs: call(i, a, k)),
            )


def modules(info: Any) -> Iterator[Outcome]:
    """Each argument, parameter and buffer in turn; then the whole module, and all arguments."""
    torch.manual_seed(0)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )
    for number, given in enumerate(list(inputs)[: SAMPLES["modules"]]):
        if given.forward_input is None:
            continue
        torch.manual_seed(0)
        made = given.constructor_input
        module = info.module_cls(*made.args, **made.kwargs)
        forward = given.forward_input
        leaves, spec = tree_flatten((forward.args, forward.kwargs))
        yield from _each_module(number, module, leaves, spec)


def _each_module(number: int, module: Any, leaves: list[Any], spec: Any) -> Iterator[Outcome]:
    def run(where: str, device: str, argument: int | None = None, name: str = "") -> None:
        network = copy.deepcopy(module).to(device)
        if name:
            _put(network, name, {"cpu": "cpu", "gpu1": "cuda:1"}[where])
            where = "home"
        moved = placed(leaves, where, argument or 0) if any(map(is_tensor, leaves)) else leaves
        args, kwargs = tree_unflatten(moved, spec)
        network(*args, **kwargs)

    count = sum(map(is_tensor, leaves))
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    yield [number, "home", 0], raised(lambda: run("home", "cuda:0"))
    for where in ("cpu", "gpu1"):
        for i in range(count):
            yield [number, where, i], raised(lambda w=where, i=i: run(w, "cuda:0", i))
        for name in names:
            yield [number, where, name], raised(lambda w=where, n=name: run(w, "cuda:0", name=n))
    if count and names:
        for device in ("cpu", "cuda:1"):
            yield [number, "module", device], raised(lambda d=device: run("home", d))


def _put(module: Any, name: str, device: str) -> None:
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    old = getattr(module, last)
    held = module._parameters if last in module._parameters else module._buffers
    moved = old.detach().to(device)
    held[last] = torch.nn.Parameter(moved) if last in module._parameters else moved


@contextlib.contextmanager
def unflattened() -> Iterator[None]:
    """Recurrent layers whose weights cuDNN does not rearrange: no card, no cuDNN."""
    kept = torch.nn.RNNBase.flatten_parameters
    torch.nn.RNNBase.flatten_parameters = lambda self: None  # type: ignore[method-assign]
    yield
    torch.nn.RNNBase.flatten_parameters = kept  # type: ignore[method-assign]
