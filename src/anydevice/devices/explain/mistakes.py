"""Mistakes around devices that are no mismatch: names, dtypes, pinning, workers, generators."""

import ast
import re
from collections.abc import Callable

import torch
from torch import nn

from anydevice.devices.explain.fix import users_of
from anydevice.devices.explain.operands import operands
from anydevice.devices.explain.scene import Scene, Subject

# What people call a device, and what PyTorch does.
MEANT = {
    **dict.fromkeys(("gpu", "nvidia", "rocm", "amd", "hip", "a100", "h100"), "cuda"),
    **dict.fromkeys(("metal", "apple", "m1", "m2", "m3", "m4"), "mps"),
    **dict.fromkeys(("intel", "arc"), "xpu"),
    **dict.fromkeys(("host", "ram", "processor"), "cpu"),
}


def explain_mistake(traceback: list[Scene], text: str) -> str | None:
    """The explanation of the first rule that knows the error's text."""
    for pattern, rule in RULES.items():
        if found := re.search(pattern, text):
            users = users_of(traceback)
            place = f"{users[0].place}: " if users else ""
            note = rule(found, users)
            return note and f"{place}{note}"
    return None


def is_mistake(text: str) -> bool:
    """Whether a rule knows the error's text."""
    return any(re.search(pattern, text) for pattern in RULES)


def _device_name(found: re.Match[str], users: list[Scene]) -> str:
    name = found["name"].strip()
    kind, colon, index = name.lower().partition(":")
    meant = MEANT.get(kind, "cuda")
    known = f'its name for a GPU of NVIDIA or AMD is "cuda{colon}{index}"'
    if meant != "cuda":
        known = f'you may mean "{meant}{colon}{index}"'
    return (
        f'PyTorch has no device "{name}"; {known}.\n'
        "  Fix: device = anydevice.try_gpu(), a GPU where there is one and the CPU elsewhere"
    )


def _dtypes(found: re.Match[str], users: list[Scene]) -> str | None:
    """Of a module and a tensor, or of two tensors, the second has to change."""
    sides = [one for scene in users[:1] for one in operands(scene) if _dtype(one) is not None]
    sides.sort(key=lambda one: not isinstance(one.value, nn.Module))
    stays = sides[0] if sides else None
    moves = next((one for one in sides[1:] if stays and _dtype(one) != _dtype(stays)), None)
    if stays is None or moves is None:
        return (
            "floating-point numbers of two dtypes met, and no autocast chose one.\n"
            "  Fix: convert one with .to(other.dtype), or compute under "
            "torch.autocast(device.type)"
        )
    wanted = _dtype(stays)
    facts = f"{stays.text} is of {wanted}, {moves.text} of {_dtype(moves)}"
    kept = f"{moves.text} = " if moves.text.isidentifier() else ""
    return f"{facts}.\n  Fix: {kept}{moves.text}.to({wanted})"


def _dtype(side: Subject) -> torch.dtype | None:
    """The floating-point dtype of a tensor, or of a module's first such parameter."""
    held = side.value.parameters() if isinstance(side.value, nn.Module) else [side.value]
    kinds = (t.dtype for t in held if isinstance(t, torch.Tensor) and t.is_floating_point())
    return next(kinds, None)


def _unsafe_loss(found: re.Match[str], users: list[Scene]) -> str:
    return (
        "under autocast the sigmoid's result is half precision, where its logarithm is lost.\n"
        "  Fix: leave the sigmoid out, and use nn.BCEWithLogitsLoss() or "
        "nn.functional.binary_cross_entropy_with_logits"
    )


def _generator(found: re.Match[str], users: list[Scene]) -> str:
    wanted, is_on = found["wanted"], found["found"]
    given = _keyword(users[:1], "generator")
    name = given if given and given.isidentifier() else "generator"
    return (
        f"{name} is a generator of {is_on}, and the numbers are drawn on {wanted}.\n"
        f'  Fix: {name} = torch.Generator(device="{wanted}")'
    )


def _keyword(users: list[Scene], name: str) -> str | None:
    """What the failing call was given under this name, as it is written."""
    for scene in users:
        call = scene.expression
        for keyword in call.keywords if isinstance(call, ast.Call) else ():
            if keyword.arg == name:
                return ast.unparse(keyword.value)
    return None


def _pinning(found: re.Match[str], users: list[Scene]) -> str:
    return (
        "only memory of the CPU can be pinned, and these samples are on a GPU already.\n"
        "  Fix: leave pin_memory=True out, or keep the dataset on the CPU and move each batch"
    )


def _forked(found: re.Match[str], users: list[Scene]) -> str:
    return (
        "this process was forked from one that had used a GPU, such as a DataLoader's worker whose "
        "dataset is on the GPU.\n"
        "  Fix: keep the dataset on the CPU and move each batch in the loop, or give the "
        'DataLoader num_workers=0 or multiprocessing_context="spawn"'
    )


def _backend(found: re.Match[str], users: list[Scene]) -> str:
    return (
        f"there is no device for {found['backend']} here, or this PyTorch is not built for it.\n"
        "  Fix: device = anydevice.try_gpu(), a GPU where there is one and the CPU elsewhere"
    )


RULES: dict[str, Callable[[re.Match[str], list[Scene]], str | None]] = {
    r"device type at start of device string: (?P<name>[^\n]*)": _device_name,
    r"(?:must|to) have the same dtype|same scalar type|expected scalar type \w+ but found \w+"
    r"|Found dtype \w+ but expected \w+|source and destination dtypes match"
    r"|Input type \(.*\) and (?:weight|bias) type \(.*\) should be the same": _dtypes,
    r"are unsafe to autocast": _unsafe_loss,
    r"'(?P<wanted>\w+)' device type for generator but found '(?P<found>\w+)'": _generator,
    r"only dense CPU tensors can be pinned": _pinning,
    r"Cannot re-initialize CUDA in forked subprocess": _forked,
    r"Could not run '.+' with arguments from the '(?P<backend>MPS|XPU|HIP|HPU)' backend": _backend,
}
