"""Tensors and modules that met on different devices: which stays, which has to move, and where."""

import ast
import re
from dataclasses import dataclass

import torch
from torch import nn

from anydevice.devices.explain.operands import operands
from anydevice.devices.explain.scene import Scene, Subject

CPU = torch.device("cpu")
Pair = tuple[Subject | None, Subject, torch.device]  # what stays, what moves, and where to


@dataclass(frozen=True)
class Mismatch:
    """What stays, what has to move to its device, and the scenes that name them, innermost first.

    Only the innermost of the user's lines is judged. The further scenes are those of the callers
    that handed in what has to move.
    """

    stays: Subject | None
    moves: Subject
    target: torch.device
    chain: tuple[Scene, ...]

    @property
    def scene(self) -> Scene:
        """Where the user's own name for what has to move stands."""
        return self.chain[-1]


def find_mismatch(users: list[Scene], message: str) -> Mismatch | None:
    """What met at the innermost of the user's lines, if enough of it is known."""
    if not users:
        return None
    scene = users[0]
    sides = operands(scene) if scene.expression else scene.locals
    if scene.expression is None and len(sides) != 2:
        return None  # too many could be meant
    is_index = isinstance(scene.expression, ast.Subscript)
    found = _index(sides) if is_index else _pair(sides, message)
    if found is None:
        return None
    stays, moves, target = found
    return _climb(Mismatch(stays, _owner(scene, moves), target, (scene,)), users[1:])


def _pair(sides: list[Subject], message: str) -> Pair | None:
    """The GPU's side stays; without one the message names its device. The first other moves."""
    # PyTorch lets a CPU scalar join a GPU's tensors: blame one only if nothing else differs.
    sides = sorted(sides, key=lambda s: isinstance(s.value, torch.Tensor) and s.value.dim() == 0)
    modules = [side for side in sides if isinstance(side.value, nn.Module)]
    others = [side for side in sides if side not in modules]
    named = re.findall(r"\b(?:cuda|mps|xpu|hpu|meta)(?::\d+)?\b", message)
    candidates = [(side, device) for side in (*modules, *others) for device in side.devices]
    stays, target = next(
        ((side, device) for side, device in candidates if device != CPU),
        (None, torch.device(named[0]) if named else CPU),
    )
    for moves in (*others, *modules):
        if moves.devices and target not in moves.devices and target != CPU:
            return stays, moves, target
    return None


def _index(sides: list[Subject]) -> Pair | None:
    """An index has to be on the CPU or where the indexed tensor is: the index moves."""
    if len(sides) == 2 and sides[0].devices != sides[1].devices:
        return sides[0], sides[1], next(iter(sides[0].devices))
    return None


def _owner(scene: Scene, moves: Subject) -> Subject:
    """For a registered parameter or buffer of the running module, the module."""
    owner = scene.frame.f_locals.get("self")
    if isinstance(owner, nn.Module) and isinstance(moves.value, torch.Tensor):
        own = (*owner.parameters(recurse=False), *owner.buffers(recurse=False))
        if any(tensor is moves.value for tensor in own):
            return Subject("self", owner, moves.devices)
    return moves


def _climb(mismatch: Mismatch, callers: list[Scene]) -> Mismatch:
    """Follow what has to move to the caller that gave it, where the user has a name for it."""
    for outer in callers:
        sides = operands(outer)
        moves = _in_caller(mismatch, sides)
        if moves is None:
            break
        stays = next((s for s in sides if s is not moves and mismatch.target in s.devices), None)
        mismatch = Mismatch(stays, moves, mismatch.target, (*mismatch.chain, outer))
    return mismatch


def _in_caller(mismatch: Mismatch, sides: list[Subject]) -> Subject | None:
    """What has to move, as the calling line names it."""
    moving = mismatch.moves
    if isinstance(moving.value, nn.Module):
        return next((side for side in sides if _is_whole_and_holds(side, moving)), None)
    if any(given.value is moving.value for given in mismatch.scene.arguments):
        return next((side for side in sides if side.value is moving.value), None)
    return None


def _is_whole_and_holds(side: Subject, layer: Subject) -> bool:
    """Whether all of the module has to move; a layer that strayed is fixed where it is."""
    if not isinstance(side.value, nn.Module) or side.devices != layer.devices:
        return False
    return any(child is layer.value for child in side.value.modules())
