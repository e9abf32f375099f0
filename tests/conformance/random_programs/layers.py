"""What networks are made of: products, convolutions, norms, losses, dropout; and gradients."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.shapes import dimension
from tests.conformance.random_programs.values import At, Twin, bring_together, count_versions_alike

LOSSES = [
    "cross_entropy", "mse_loss", "nll_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "kl_div",
    "binary_cross_entropy_with_logits",
]  # fmt: skip
HALVES = {torch.float16, torch.bfloat16}


def exactness(running: Running, value: Twin) -> str:
    """Halves may be computed in float32 and rounded, where the CPU's own kernel is too slow."""
    half = value.dtype in HALVES or running.inside("autocast")
    return "close" if half else "exact"


def computes(value: Twin) -> bool:
    """Whether CUDA multiplies matrices of this dtype."""
    return value.floats or value.dtype.is_complex


def product(running: Running, choices: Choices) -> None:
    value = running.pick(choices, lambda v: computes(v) and v.dim > 0)
    columns, device, dtype = 1 + choices.below(4), value.device, value.dtype
    name = choices.among(["matmul", "linear", "addmm", "bmm", "mv", "einsum", "outer", "baddbmm"])
    if running.inside("autocast"):  # whose lists for the CPU and CUDA differ in the others
        name = choices.among(["matmul", "linear", "addmm", "bmm"])
    inner = value.shape[-1]
    if name == "linear":
        weight = running.new(choices, [columns, inner], dtype, device, grad=True)
        bias = running.new(choices, [columns], dtype, device, grad=True)
        args: list[Any] = [F.linear, value, weight, choices.among([bias, None])]
    elif name == "addmm" and value.dim == 2:
        other = running.new(choices, [inner, columns], dtype, device)
        args = [torch.addmm, running.new(choices, [columns], dtype, device), value, other]
    elif name in ("bmm", "baddbmm") and value.dim == 3:
        other = running.new(choices, [value.shape[0], inner, columns], dtype, device)
        args = [torch.bmm, value, other]
        if name == "baddbmm":
            args = [torch.baddbmm, running.new(choices, [1], dtype, device), value, other]
    elif name == "mv" and value.dim == 2:
        args = [torch.mv, value, running.new(choices, [inner], dtype, device)]
    elif name == "outer" and value.dim == 1:
        args = [torch.outer, value, running.new(choices, [columns], dtype, device)]
    elif name == "einsum" and value.dim == 2:
        other = running.new(choices, [inner, columns], dtype, device)
        args = [lambda a, b: torch.einsum("ij,jk->ki", a, b), value, other]
    else:
        other = running.new(choices, [inner, columns], dtype, device)
        args = [torch.matmul, value, other]
    running.apply(name, *args, compare=exactness(running, value))


def convolution(running: Running, choices: Choices) -> None:
    rank = choices.among([2, 1, 3])
    value = running.pick(choices, lambda v: v.floats and v.dim == rank + 2 and 0 not in v.shape)
    if not value.floats or value.dim != rank + 2:
        shape = [2, 2, *(4 + choices.below(4) for _ in range(rank))]
        dtype = choices.among([torch.float32, torch.float64, torch.bfloat16, torch.float16])
        value = running.new(choices, shape, dtype, choices.among(["cuda:0", "cuda:1"]), grad=True)
    channels, kernel = value.shape[1], 1 + choices.below(3)
    transposed = choices.once_in(4)
    shape = [channels, 2] if transposed else [2, channels]
    weight = running.new(choices, shape + [kernel] * rank, value.dtype, value.device, grad=True)
    bias = choices.among([None, running.new(choices, [2], value.dtype, value.device)])
    how = {"stride": 1 + choices.below(2), "padding": choices.below(2)}
    function = getattr(F, f"conv_transpose{rank}d" if transposed else f"conv{rank}d")
    exact = exactness(running, value)
    running.apply(function.__name__, function, value, weight, bias, compare=exact, **how)


def layer(running: Running, choices: Choices) -> None:
    value = running.pick(choices, lambda v: v.floats and v.dim > 1 and 0 not in v.shape)
    if not value.floats or value.dim < 2 or running.inside("autocast"):
        return
    channels, last = value.shape[1], value.shape[-1]

    def of(size: int) -> Twin:
        return running.new(choices, [size], value.dtype, value.device, low=0.1, high=2, grad=True)

    name = choices.among(["layer_norm", "batch_norm", "group_norm", "softmax", "log_softmax",
                          "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate", "gelu",
                          "glu", "normalize", "instance_norm"])  # fmt: skip
    args: list[Any] = [value]
    how: dict[str, Any] = {}
    if name == "layer_norm":
        args += [[last], of(last), of(last)]
    elif name == "batch_norm":
        mean, variance = of(channels), of(channels)
        running.apply("detach", torch.Tensor.requires_grad_, mean, False)
        running.apply("detach", torch.Tensor.requires_grad_, variance, False)
        # The CPU's backward reads these as if they had no strides.
        for each in (mean, variance):
            each.cpu, each.gpu = each.cpu.contiguous(), each.gpu.contiguous()
        args += [mean, variance, of(channels), of(channels)]
        how = {"training": choices.once_in(2)}
    elif name == "group_norm":
        args += [1, of(channels)]
    elif name in ("softmax", "log_softmax"):
        args += [dimension(choices, value)]
    elif name in ("max_pool2d", "avg_pool2d"):
        args += [1 + choices.below(2)]
    elif name == "adaptive_avg_pool2d":
        args += [1 + choices.below(3)]
    elif name == "interpolate":
        how = {"scale_factor": 2, "mode": choices.among(["nearest", "bilinear", "bicubic"])}
    exact = "close" if "norm" in name or value.dtype in HALVES else "exact"
    running.apply(name, getattr(F, name), *args, compare=exact, **how)


def loss(running: Running, choices: Choices) -> None:
    value = running.pick(choices, lambda v: v.floats and v.dim == 2 and 0 not in v.shape)
    if not value.floats or value.dim != 2 or running.inside("autocast"):
        return
    rows, classes = value.shape
    name = choices.among(LOSSES)
    how = {"reduction": choices.among(["mean", "sum", "none"])}
    if name in ("cross_entropy", "nll_loss"):
        target = running.new(choices, [rows], torch.int64, value.device, low=0, high=classes)
    else:
        target = running.new(choices, value.shape, value.dtype, value.device, low=0, high=1)
    exact = "close" if value.dtype in HALVES else "exact"
    running.apply(name, getattr(F, name), value, target, compare=exact, **how)


def chance(running: Running, choices: Choices) -> None:
    """Random numbers are the card's own, so only their kind is compared."""
    name = choices.among(["rand", "randn", "randint", "randperm", "rand_like", "normal_", "dropout",
                          "bernoulli", "multinomial", "exponential_", "random_"])  # fmt: skip
    device = choices.among(["cuda:0", "cuda:1", "cpu"])
    given: dict[str, list[Any]] = {
        "rand": [3],
        "randn": [4],
        "randint": [9, [5]],
        "randperm": [6],
    }
    value = running.pick(choices, lambda v: v.dtype is torch.float32 and v.cpu.numel() > 0)
    where = {"compare": "random"}
    if name in given:
        function = getattr(torch, name)
        running.apply(name, function, *given[name], device=At(device), on=device, **where)
    elif value.dtype is not torch.float32:
        return
    elif name == "rand_like":
        running.apply(name, torch.rand_like, value, **where)
    elif name == "dropout":
        dropped = lambda t, odds: F.dropout(t.detach(), odds)  # noqa: E731 (gradients are as random)
        running.apply(name, dropped, value, choices.among([0.5, 0.1]), **where)
    elif name in ("bernoulli", "multinomial"):
        odds = running.new(choices, [4], torch.float32, value.device, low=0, high=1)
        args = [odds] if name == "bernoulli" else [odds, 2]
        running.apply(name, getattr(torch, name), *args, **where)
    else:
        copy = running.apply("copy", lambda t: t.detach().clone(), value)[0]
        function = getattr(torch.Tensor, name)
        running.apply(name, lambda t: function(t).clone(), copy, **where)
        bring_together(copy)


def backward(running: Running, choices: Choices) -> None:
    """From a value to the leaves that it was computed from."""
    value = running.pick(choices, lambda v: v.cpu.requires_grad and not v.cpu.is_leaf)
    if not value.cpu.requires_grad or value.cpu.is_leaf:
        return
    keep = choices.once_in(2)
    leaves = [v for v in running.values if v.cpu.is_leaf and v.cpu.requires_grad and v.strided]
    near = [leaf for leaf in leaves if leaf.device == value.device]
    if choices.once_in(3) and near:
        running.apply(
            "torch.autograd.grad", torch.autograd.grad, [value], near, [ones(running, value)],
            retain_graph=keep, allow_unused=True, compare="close",
        )  # fmt: skip
        return
    running.apply("backward", torch.Tensor.backward, value, ones(running, value), retain_graph=keep)
    for leaf in leaves:
        close(running, leaf)


def ones(running: Running, value: Twin) -> Twin:
    cpu, gpu = (torch.ones_like(t, requires_grad=False) for t in (value.cpu, value.gpu))
    return Twin("ones", cpu.detach(), gpu.detach(), value.device)


def close(running: Running, leaf: Twin) -> None:
    """Gradients of kernels that only CUDA has are equal but for rounding."""
    if leaf.cpu.grad is not None and leaf.gpu.grad is not None:
        gradient = Twin(f"{leaf.name}.grad", leaf.cpu.grad, leaf.gpu.grad, leaf.device)
        count_versions_alike(gradient)
        running.check(gradient, close=True)
        bring_together(gradient)


KINDS = {
    "product": (product, 4), "convolution": (convolution, 2), "layer": (layer, 3),
    "loss": (loss, 2), "chance": (chance, 2), "backward": (backward, 5),
}  # fmt: skip
