"""Functions of several ops: captured in a CUDA graph, transformed by torch.func, compiled."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.values import DEVICES, Twin

# Each keeps the shape of its operands, works in float32, and does not make the host wait.
GPUS, SIDES = DEVICES[:2], ("cpu", "gpu")
LINES = [
    "torch.sin({0})", "{0} * {1}", "{0} + 1", "torch.relu({0} - {1})", "torch.softmax({0}, -1)",
    "{0}.cumsum(-1)", "{0}.flip(-1)", "torch.where({0} > 0, {0}, {1})", "{0} - {0}.mean()",
    "{0} / (1 + {1}.abs().amax(-1, keepdim=True))", "{0}.clone().mul_(2).add_({1})",
    "torch.nn.functional.layer_norm({0}, {0}.shape[-1:])", "{0}.sort(-1).values",
    "torch.stack([{0}, {1}]).sum(0)", "torch.cat([{0}, {1}], -1).narrow(-1, 0, {0}.shape[-1])",
    "({0} @ {1}.transpose(-1, -2)).sum(-1, keepdim=True) * {0}", "{0}.contiguous().exp().log1p()",
    "torch.zeros_like({0}).copy_({1})", "torch.addcmul({0}, {0}, {1}, value=0.5)",
    "{0}.gather(-1, {1}.argsort(-1))", "torch.lerp({0}, {1}, 0.3)", "{0}.to(torch.float64).float()",
    "torch.nn.functional.gelu({0})", "torch.maximum({0}, {1})", 
    "{0}.unsqueeze(0).expand(2, *[-1] * {0}.dim()).sum(0)",
]  # fmt: skip


def function(choices: Choices) -> tuple[str, Callable[..., Any]]:
    """A function of two tensors, and its text."""
    names, lines = ["x", "y"], ["def f(x, y):"]
    for i in range(1 + choices.below(5)):
        operands = [names[-1 - choices.below(len(names))] for _ in range(2)]
        lines.append(f"    t{i} = {choices.among(LINES).format(*operands)}")
        names.append(f"t{i}")
    lines.append(f"    return {names[-1]}")
    text = "\n".join(lines)
    defined: dict[str, Any] = {"torch": torch}
    exec(text, defined)
    return text, defined["f"]


def operands(running: Running, choices: Choices, rank: int, devices: Sequence[str]) -> list[Twin]:
    shape = [2 + choices.below(3) for _ in range(rank)]
    device = choices.among(devices)
    return [running.new(choices, shape, torch.float32, device) for _ in range(2)]


def graph(running: Running, choices: Choices) -> None:
    """Captured once and replayed on other numbers: each time the answer is the eager one."""
    if running.inside("autocast", "inference_mode"):
        return
    x, y = operands(running, choices, 2, GPUS)
    text, f = function(choices)
    running.trace.append(f"{text}\nCUDA graph of f({x!r}, {y!r})")
    on_cpu, on_gpu = ([getattr(t, where).detach().clone() for t in (x, y)] for where in SIDES)
    captured = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.device(x.gpu.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            f(*on_gpu)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(captured):
            out = f(*on_gpu)
        for round in range(1 + choices.below(3)):
            for cpu, gpu in zip(on_cpu, on_gpu, strict=True) if round else ():
                gpu.copy_(cpu.uniform_())
            captured.replay()
            running.check(Twin(f"replay {round}", f(*on_cpu).clone(), out.clone(), x.device))
        captured.reset()


def transformed(running: Running, choices: Choices) -> None:
    x, y = operands(running, choices, 3, DEVICES)
    text, f = function(choices)
    name = choices.among(["vmap", "jvp", "grad", "vjp", "vmap of grad", "forward AD", "jacrev"])
    dims = choices.among([(0, 0), (1, 1), (2, 2)])
    total = torch.func.grad(lambda a, b: f(a, b).sum(), argnums=choices.below(2))

    def forward_ad(a: torch.Tensor, b: torch.Tensor) -> Any:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(a, b)
            return tuple(torch.autograd.forward_ad.unpack_dual(f(dual, b)))

    calls: dict[str, Callable[..., Any]] = {
        "vmap": torch.func.vmap(f, in_dims=dims, out_dims=choices.below(2)),
        "jvp": lambda a, b: torch.func.jvp(f, (a, b), (b, a)),
        "grad": total,
        "vjp": lambda a, b: torch.func.vjp(f, a, b)[1](torch.ones_like(a)),
        "vmap of grad": torch.func.vmap(total),
        "forward AD": forward_ad,
        "jacrev": lambda a, b: torch.func.jacrev(f)(a[0], b[0]),
    }
    running.trace.append(text)
    running.apply(f"{name} of f", calls[name], x, y)


def compiled(running: Running, choices: Choices) -> None:
    """Rarely: each compiles twice."""
    if not choices.once_in(12) or running.contexts:
        return
    x, y = operands(running, choices, 2, GPUS)
    text, f = function(choices)
    backend = choices.among(["eager", "aot_eager"])
    running.trace.append(text)
    running.apply(f"compiled with {backend}: f", torch.compile(f, backend=backend), x, y)


KINDS = {"graph": (graph, 2), "transformed": (transformed, 3), "compiled": (compiled, 1)}
