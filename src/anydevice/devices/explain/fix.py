"""The line that fixes a device error, in the user's own names: one rule for each way it happens."""

import ast
import inspect
import textwrap
from collections.abc import Iterator

import torch
from torch import nn

from anydevice.devices.explain.mismatch import Mismatch, find_mismatch
from anydevice.devices.explain.operands import makes_tensor, moved_to, operands
from anydevice.devices.explain.scene import Scene, Subject
from anydevice.devices.place import is_placed
from anydevice.devices.placement import placement


def explain_numpy(traceback: list[Scene]) -> str | None:
    """For a GPU tensor that was to become a NumPy array, or that NumPy's functions were given."""
    is_called = traceback[0].frame.f_globals.get("__name__", "").startswith("numpy.")
    for scene in users_of(traceback)[:1]:
        for side in operands(scene):
            if isinstance(side.value, torch.Tensor) and side.value.device.type != "cpu":
                copied = f"{side.text}{'.detach()' if side.value.requires_grad else ''}.cpu()"
                text = ast.unparse(scene.expression) if scene.expression else ""
                asked = text.endswith(".numpy()") or is_called
                return (
                    f"{scene.place}: {side.text} is on {side.value.device}, and NumPy arrays live "
                    f"on the CPU.\n  Fix: {copied}{'.numpy()' if asked else ''}"
                )
    return None


def explain_mismatch(traceback: list[Scene], message: str) -> str | None:
    """For tensors and modules that met on different devices."""
    users = users_of(traceback)
    split = _split_module(traceback, users) or _optimizer_state(users)
    if split:
        return split
    mismatch = find_mismatch(users, message)
    if mismatch is None:
        return None
    for rule in (_dropped_result, _plain_attribute, _plain_list, _made_on_the_cpu, _leaf):
        note = rule(mismatch)
        if note:
            return note
    return _move(mismatch)


def users_of(traceback: list[Scene]) -> list[Scene]:
    """The frames of the user's own code; if all of it is installed, those outside PyTorch."""
    own = [scene for scene in traceback if not scene.is_library]
    return own or [s for s in traceback if not s.frame.f_globals["__name__"].startswith("torch")]


def _note(mismatch: Mismatch, why: str, line: str) -> str:
    """The facts, the reason, and the line that fixes it."""
    sides = (side for side in (mismatch.stays, mismatch.moves) if side)
    facts = ", ".join(f"{side.text} is on {_devices(side)}" for side in sides)
    return f"{mismatch.scene.place}: {facts}.{why and ' '}{why}\n  Fix: {line}"


def _move(mismatch: Mismatch) -> str:
    """The plain fix: move the one to the other."""
    moves, target = mismatch.moves, mismatch.target
    container, bracket, _ = moves.text.partition("[")
    if isinstance(moves.value, torch.Tensor) and bracket:
        return _note(mismatch, "", f'{container} = anydevice.move({container}, "{target}")')
    kept = f"{moves.text} = " if isinstance(moves.value, torch.Tensor) else ""
    return _note(mismatch, "", f'{kept}{moves.text}.to("{target}")')


def _leaf(mismatch: Mismatch) -> str | None:
    """A parameter keeps its identity, since an optimizer may hold it."""
    moves = mismatch.moves
    if isinstance(moves.value, torch.Tensor) and moves.value.requires_grad and moves.value.is_leaf:
        line = f'{moves.text}.data = {moves.text}.data.to("{mismatch.target}")'
        return _note(mismatch, "", line)
    return None


def _dropped_result(mismatch: Mismatch) -> str | None:
    """`x.to("cuda")` as a statement: a tensor's .to gives a new tensor."""
    for scene in mismatch.chain:
        for node in ast.walk(scene.scope) if scene.scope else ():
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
                continue
            call = node.value
            target = moved_to(scene, call)
            meant = target and target.type == mismatch.target.type and node.lineno < scene.line
            if meant and scene.resolve(call.func.value) is mismatch.moves.value:  # type: ignore[attr-defined]
                text = ast.unparse(call.func.value)  # type: ignore[attr-defined]
                why = f"Line {node.lineno} moves {text}, but drops the result."
                return _note(mismatch, why, f"{text} = {ast.unparse(call)}")
    return None


def _plain_attribute(mismatch: Mismatch) -> str | None:
    """A tensor kept as `self.scale = torch.…`, which Module.to leaves behind."""
    for owner, name, value in _attributes(mismatch):
        made = _made_in_init(owner, name) if value is mismatch.moves.value else None
        if made:
            why = f"Module.to left it behind, since {name} is a plain attribute."
            return _note(mismatch, why, f'self.register_buffer("{name}", {made})')
    return None


def _plain_list(mismatch: Mismatch) -> str | None:
    """Layers kept in a plain list or dict, which Module.to does not see."""
    layer = mismatch.moves.value
    for owner, name, value in _attributes(mismatch):
        items = list(value.values()) if type(value) is dict else value
        if name.startswith("_") or type(items) not in (list, tuple):
            continue
        made = _made_in_init(owner, name)
        if made and isinstance(layer, nn.Module) and any(item is layer for item in items):  # type: ignore[attr-defined]
            why = f"Module.to left it behind, since {name} is a plain {type(value).__name__}."
            kind = "ModuleDict" if type(value) is dict else "ModuleList"
            return _note(mismatch, why, f"self.{name} = nn.{kind}({made})")
    return None


def _attributes(mismatch: Mismatch) -> Iterator[tuple[nn.Module, str, object]]:
    """The plain attributes of the module whose method met the mismatch."""
    owner = mismatch.chain[0].frame.f_locals.get("self")
    if isinstance(owner, nn.Module):
        for name, value in vars(owner).items():
            yield owner, name, value


def _made_in_init(owner: nn.Module, name: str) -> str | None:
    """The source of what an `__init__` of the module assigns to its attribute."""
    for kind in type(owner).__mro__:
        if "__init__" in vars(kind) and issubclass(kind, nn.Module) and kind is not nn.Module:
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(vars(kind)["__init__"])))
            except (OSError, SyntaxError, TypeError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
                    is_none = isinstance(node.value, ast.Constant) and node.value.value is None
                    return None if is_none else ast.unparse(node.value)
    return None


def _made_on_the_cpu(mismatch: Mismatch) -> str | None:
    """A tensor made right here without a device: `torch.zeros(…)`."""
    scene, text = mismatch.scene, mismatch.moves.text
    inline = mismatch.moves.value is None
    assigned = scene.assignments(text)
    made = ast.parse(text, mode="eval").body if inline else None
    if not inline and len(assigned) == 1 and assigned[0].lineno < scene.line:
        made = assigned[0].value
    if not (isinstance(made, ast.Call) and makes_tensor(scene, made)):
        return None
    device = f'"{mismatch.target}"'
    if mismatch.stays and isinstance(mismatch.stays.value, torch.Tensor):
        device = f"{mismatch.stays.text}.device"
    call = f"{ast.unparse(made)[:-1]}{', ' if made.args or made.keywords else ''}device={device})"
    where = scene.line if inline else made.lineno
    why = f"Line {where} makes it without a device."
    return _note(mismatch, why, call if inline else f"{text} = {call}")


def _split_module(traceback: list[Scene], users: list[Scene]) -> str | None:
    """A network with layers on several devices: the layer that failed."""
    running = [scene.frame.f_locals.get("self") for scene in traceback]
    for scene in users:
        for side in operands(scene):
            if not isinstance(side.value, nn.Module) or not side.is_split or is_placed(side.value):
                continue
            paths = {id(layer): path for path, layer in side.value.named_modules() if path}
            stopped = next((paths[id(layer)] for layer in running if id(layer) in paths), None)
            if stopped is None:
                continue
            target = next(device for device in side.devices if device.type != "cpu")
            return (
                f"{scene.place}: {side.text} is {placement(side.value).summary}; it stopped in "
                f'layer {stopped}.\n  Fix: {side.text}.to("{target}"), or keep it split with '
                f"anydevice.place({side.text}, {{…}}), which moves the activations"
            )
    return None


def _optimizer_state(users: list[Scene]) -> str | None:
    """An optimizer whose state was made or loaded before its parameters moved."""
    for scene in users:
        call = scene.expression
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        optimizer, text = scene.resolve(call.func.value), ast.unparse(call.func.value)
        if isinstance(optimizer, torch.optim.Optimizer):
            for key, device, wanted in _strayed_state(optimizer):
                return (
                    f"{scene.place}: {text} keeps its {key} on {device}, and its parameters are on "
                    f'{wanted}.\n  Fix: anydevice.move({text}, "{wanted}")'
                )
    return None


def _strayed_state(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[str, torch.device, torch.device]]:
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            strayed = isinstance(value, torch.Tensor) and value.device != parameter.device
            if strayed and key != "step":  # the step counter lives on the CPU
                yield key, value.device, parameter.device


def _devices(side: Subject) -> str:
    return " and ".join(sorted(str(device) for device in side.devices))
