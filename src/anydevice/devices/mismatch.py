"""Tensors and modules that met on different devices: which stays, which has to move, and where."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from anydevice.devices.scene import Scene, Subject

_FACTORIES = [
    *(
        "arange",
        "as_tensor",
        "empty",
        "eye",
        "from_numpy",
        "full",
        "linspace",
        "logspace",
        "normal",
    ),
    *("ones", "rand", "randint", "randn", "randperm", "tensor", "zeros"),
]


@dataclass(frozen=True)
class Mismatch:
    """What stays (a GPU's side), what has to move to its device, and the scene that names both."""

    scene: Scene
    stays: Subject | None
    moves: Subject
    target: torch.device


def find_mismatch(users: list[Scene]) -> Mismatch | None:
    """The innermost of the user's lines that names both sides."""
    return next((found for found in map(_mismatch_in, users) if found), None)


def climb(mismatch: Mismatch, users: list[Scene]) -> Mismatch:
    """Follow what has to move to the caller that gave it, where the user has a name for it."""
    for outer in users[users.index(mismatch.scene) + 1 :]:
        moves = _in_caller(mismatch, outer)
        if moves is None:
            break
        stays = next((s for s in outer.subjects if mismatch.target in s.devices), None)
        mismatch = Mismatch(outer, stays, moves, mismatch.target)
    return mismatch


def makes_tensor(scene: Scene, call: ast.Call) -> bool:
    """Whether the call is one like `torch.zeros(3)`, which names no device."""
    name = ast.unparse(call.func).rpartition(".")[2]
    is_torch = name in _FACTORIES and scene.resolve(call.func) is getattr(torch, name)
    return is_torch and not any(keyword.arg == "device" for keyword in call.keywords)


def _mismatch_in(scene: Scene) -> Mismatch | None:
    modules = [s for s in scene.subjects if isinstance(s.value, nn.Module) and s.devices]
    tensors = [s for s in scene.subjects if isinstance(s.value, torch.Tensor)]
    # PyTorch lets a CPU scalar join a GPU's tensors: blame one only if nothing else differs.
    tensors.sort(key=lambda s: s.value.dim() == 0)
    for stays in (*modules, *tensors):
        target = next((device for device in stays.devices if device.type != "cpu"), None)
        for moves in (*tensors, *modules, *_made_inline(scene)):
            if target and target not in moves.devices:
                return Mismatch(scene, stays, moves, target)
    return None


def _made_inline(scene: Scene) -> Iterator[Subject]:
    """Tensors that the expression itself makes, on the CPU: `x + torch.zeros(3)`."""
    for node in ast.walk(scene.expression) if scene.expression else ():
        if isinstance(node, ast.Call) and makes_tensor(scene, node):
            yield Subject(ast.unparse(node), torch.empty(0))


def _in_caller(mismatch: Mismatch, outer: Scene) -> Subject | None:
    """What has to move, as the calling line names it."""
    moving = mismatch.moves
    if isinstance(moving.value, nn.Module):
        return next((s for s in outer.subjects if _is_whole_and_holds(s, moving)), None)
    if any(given.value is moving.value for given in mismatch.scene.arguments):
        return next((s for s in outer.subjects if s.value is moving.value), None)
    return None


def _is_whole_and_holds(subject: Subject, layer: Subject) -> bool:
    """Whether all of the module has to move; a layer that strayed is mended where it is."""
    if not isinstance(subject.value, nn.Module) or subject.devices != layer.devices:
        return False
    return any(child is layer.value for child in subject.value.modules())
