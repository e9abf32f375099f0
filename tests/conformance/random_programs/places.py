"""Devices, dtypes and memory; and the modes, streams and events that ops run in."""

from contextlib import ExitStack
from typing import Any

import torch

from tests.conformance.agree import attempt
from tests.conformance.compare import Raised
from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.running import DTYPES, Running
from tests.conformance.random_programs.values import DEVICES, At, Either, Twin, side

CONTEXTS = ["no_grad", "enable_grad", "inference_mode", "stream", "device", "autocast"]
DEEPEST = 3


def move(running: Running, choices: Choices) -> None:
    """To another device, in one of the ways in which programs write it."""
    value = running.pick(choices)
    device = choices.among(DEVICES)
    dtype = choices.among([value.dtype, value.dtype, choices.among(DTYPES)])
    waits = {"non_blocking": choices.once_in(2)}
    same = device == value.device

    def moved(tensor: torch.Tensor, to: str) -> torch.Tensor:
        return tensor.to(to, dtype, copy=not same and tensor.device.type == to, **waits)

    running.apply(f"to {dtype}", moved, value, At(device), on=device)


def copied(running: Running, choices: Choices) -> None:
    """Into a value of any device and dtype."""
    value = running.pick(choices)
    others = [v for v in running.values if v.strided and (v.shape == value.shape or not v.dim)]
    source = choices.among(others or [value])
    running.apply("copy_", torch.Tensor.copy_, value, source, choices.once_in(2))
    running.check(value)


def cast(running: Running, choices: Choices) -> None:
    value = running.pick(choices)
    running.apply("to", torch.Tensor.to, value, choices.among(DTYPES))


def made(running: Running, choices: Choices) -> None:
    """A new tensor, like another one or on a device that is named."""
    value = running.pick(choices)
    device = choices.among(DEVICES)
    name = choices.among(["zeros_like", "ones_like", "full_like", "new_zeros", "new_full", "arange",
                          "eye", "tensor", "linspace", "empty_like", "asarray"])  # fmt: skip
    formats = [torch.preserve_format, torch.contiguous_format]
    if value.dim == 4:
        formats.append(torch.channels_last)
    if name in ("zeros_like", "ones_like"):
        how = {"memory_format": choices.among(formats)}
        running.apply(name, getattr(torch, name), value, **how)
    elif name == "full_like":
        running.apply(name, torch.full_like, value, 1, device=At(device), on=device)
    elif name == "empty_like":
        running.apply("zeroed empty_like", lambda t: torch.empty_like(t).zero_(), value)
    elif name == "new_zeros":
        running.apply(name, torch.Tensor.new_zeros, value, [2, 3], device=At(device), on=device)
    elif name == "new_full":
        running.apply(name, torch.Tensor.new_full, value, [2], 1)
    elif name in ("tensor", "asarray"):
        function = getattr(torch, name)
        running.apply(name, function, [[1.5, 2], [3, 4]], device=At(device), on=device)
    else:
        given = {"arange": (7,), "eye": (3,), "linspace": (0, 1, 5)}[name]
        running.apply(name, getattr(torch, name), *given, device=At(device), on=device)


def formatted(running: Running, choices: Choices) -> None:
    """The same values in another order in memory."""
    value = running.pick(choices)
    name = choices.among(["contiguous", "clone", "requires_grad_", "pin_memory"])
    formats = [torch.contiguous_format, torch.channels_last] if value.dim == 4 else [None]
    if name == "requires_grad_":
        running.apply(name, torch.Tensor.requires_grad_, value, choices.once_in(2))
    elif name == "pin_memory":
        pinned(running, choices)
    elif chosen := choices.among(formats):
        running.apply(name, getattr(torch.Tensor, name), value, memory_format=chosen)
    else:
        running.apply(name, getattr(torch.Tensor, name), value)


def pinned(running: Running, choices: Choices) -> None:
    def suits(value: Twin) -> bool:
        # PyTorch has no derivative of the copy for complex numbers, and does not pin what overlaps.
        has_none = value.dtype.is_complex and value.cpu.requires_grad
        return value.device == "cpu" and not has_none and not value.overlaps

    value = running.pick(choices, suits)

    def copied(tensor: torch.Tensor, where: str) -> torch.Tensor:
        return (tensor.pin_memory() if where == "gpu" else tensor).clone()

    if suits(value):
        running.apply("clone of pin_memory", copied, value, Either("cpu", "gpu"))
        if value.cpu.numel() and not value.gpu.detach().pin_memory().is_pinned():
            running.fail("the result is not pinned")


def wrong_device(running: Running, choices: Choices) -> None:
    """A call with tensors of two devices, which a card refuses and leaves without an effect."""
    value = running.pick(choices, lambda v: v.dim == 2 and v.floats and 0 not in v.shape)
    if not (value.dim == 2 and value.floats):
        return
    device = choices.among([d for d in DEVICES if d != value.device])
    other = running.new(choices, value.shape, value.dtype, device)
    name = choices.among(["add", "mul_", "matmul", "cat", "where", "linear", "index_select",
                          "gather", "lerp", "addmm", "out", "maximum", "eq", "mse_loss",
                          "layer_norm", "stack", "addcmul_"])  # fmt: skip
    a, b = (value, other) if choices.once_in(2) else (other, value)
    calls: dict[str, Any] = {
        "add": lambda x, y: x + y,
        "mul_": lambda x, y: x.detach().mul_(y),
        "matmul": lambda x, y: x @ y.T,
        "cat": lambda x, y: torch.cat([x, y]),
        "stack": lambda x, y: torch.stack([x, y]),
        "where": lambda x, y: torch.where(x > 0, x, y),
        "linear": lambda x, y: torch.nn.functional.linear(x, y),
        "index_select": lambda x, y: x.index_select(0, torch.zeros_like(y[0], dtype=torch.int64)),
        "gather": lambda x, y: x.gather(0, torch.zeros_like(y, dtype=torch.int64)),
        "lerp": lambda x, y: torch.lerp(x, y, 0.5),
        "addmm": lambda x, y: torch.addmm(x, x, y.mT),
        "out": lambda x, y: torch.add(x.detach(), 1, out=y),
        "maximum": torch.maximum,
        "eq": torch.eq,
        "mse_loss": torch.nn.functional.mse_loss,
        "layer_norm": lambda x, y: torch.nn.functional.layer_norm(x, x.shape[1:], y[0]),
        "addcmul_": lambda x, y: x.detach().addcmul_(x.detach(), y),
    }
    running.trace.append(f"{name}({a!r}, {b!r})  # {a.device} and {b.device}: refused")
    got = attempt(calls[name], a.gpu, b.gpu)
    if not isinstance(got, Raised):
        running.fail(f"expected a refusal of tensors on {a.device} and {b.device}")
    if got.type != "RuntimeError":
        running.fail(f"expected a RuntimeError, got {got.type}: {got.text}")
    running.check(value)
    running.check(other)


def enter(running: Running, choices: Choices) -> None:
    if len(running.contexts) >= DEEPEST:
        return running.leave()
    name = choices.among(CONTEXTS)
    stack = ExitStack()
    if name == "stream":
        stream = torch.cuda.Stream(choices.below(2), priority=-choices.below(2))
        stack.enter_context(torch.cuda.stream(stream))
    elif name == "device":
        stack.enter_context(torch.cuda.device(choices.below(2)))
    elif name == "autocast":
        dtype = choices.among([torch.bfloat16, torch.float16])
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, dtype, cache_enabled=choices.once_in(2)))
    else:
        stack.enter_context(getattr(torch, name)())
    return running.enter(name, stack)


def leave(running: Running, choices: Choices) -> None:
    running.leave()


def event(running: Running, choices: Choices) -> None:
    """Recorded on one stream, waited for by another; values are used on both."""
    device = choices.below(2)
    one, other = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    running.trace.append(f"events on two streams of cuda:{device}")
    begun.record(other)
    one.wait_event(begun)
    value = running.pick(choices, lambda v: v.device == f"cuda:{device}")
    with torch.cuda.stream(one):
        running.apply("on a stream: clone", torch.clone, value)
    if value.device == f"cuda:{device}":
        value.gpu.record_stream(one)
    ended.record(one)
    other.wait_stream(one)
    ended.synchronize()
    if not (begun.query() and ended.query() and begun.elapsed_time(ended) >= 0):
        running.fail("an event that was waited for is not done")


def drop(running: Running, choices: Choices) -> None:
    """Some values end here: their memory is free for what comes after."""
    for _ in range(1 + choices.below(4)):
        if running.values:
            gone = running.values.pop(choices.below(len(running.values)))
            running.trace.append(f"del {gone!r}")
    if choices.once_in(4):
        torch.cuda.empty_cache()


def numbers(running: Running, choices: Choices) -> None:
    """What a program learns of a value in Python."""
    value = running.pick(choices, lambda v: v.cpu.numel() == 1)
    functions = {
        "item": torch.Tensor.item, "tolist": torch.Tensor.tolist, "len": len, "bool": bool,
        "str": lambda tensor: len(str(tensor.detach().cpu())), "equal": lambda t: torch.equal(t, t),
        "is_contiguous": torch.Tensor.is_contiguous, "allclose": lambda t: torch.allclose(t, t),
        "nbytes": lambda tensor: tensor.nbytes, "numpy": lambda t: t.detach().cpu().sum().item(),
    }  # fmt: skip
    name = choices.among(list(functions))
    if value.cpu.numel() <= 1000:
        found = [attempt(functions[name], side(value, which)) for which in ("cpu", "gpu")]
        running.trace.append(f"{name}({value!r})")
        types = [each.type if isinstance(each, Raised) else repr(each) for each in found]
        if types[0] != types[1]:
            running.fail(f"expected {types[0]}, got {types[1]}")


KINDS = {
    "move": (move, 5), "copied": (copied, 3), "cast": (cast, 2), "made": (made, 3),
    "formatted": (formatted, 2), "wrong_device": (wrong_device, 3), "enter": (enter, 4),
    "leave": (leave, 3), "event": (event, 2), "drop": (drop, 3), "numbers": (numbers, 2),
}  # fmt: skip
