"""The line that mends a device error, in the user's own names: one rule for each way it happens."""

import ast
from collections.abc import Iterator

import torch
from torch import nn

from anydevice.devices.mismatch import Mismatch, climb, find_mismatch, makes_tensor
from anydevice.devices.placement import placement
from anydevice.devices.scene import Scene, Subject

_MOVERS = ("to", "cuda", "cpu", "xpu", "mps")


def explain_numpy(traceback: list[Scene]) -> str | None:
    """For a GPU tensor that was to become a NumPy array."""
    for scene in _users(traceback):
        for subject in scene.subjects:
            value = subject.value
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                copied = f"{subject.text}{'.detach()' if value.requires_grad else ''}.cpu()"
                asked = scene.expression and ast.unparse(scene.expression).endswith(".numpy()")
                return (
                    f"{scene.place}: {subject.text} is on {value.device}, and NumPy arrays live on "
                    f"the CPU.\n  Mend: {copied}{'.numpy()' if asked else ''}"
                )
    return None


def explain_mismatch(traceback: list[Scene]) -> str | None:
    """For tensors and modules that met on different devices."""
    users = _users(traceback)
    mismatch = find_mismatch(users)
    if mismatch is None:
        return _optimizer_state(users) or _split_module(traceback)
    for rule in (_dropped_result, _plain_attribute, _plain_list, _made_on_the_cpu):
        note = rule(mismatch, users)
        if note:
            return note
    return _split_module(traceback) or _move(climb(mismatch, users))


def _users(traceback: list[Scene]) -> list[Scene]:
    return [scene for scene in traceback if scene.is_users]


def _note(mismatch: Mismatch, why: str, line: str) -> str:
    """The facts, the reason, and the line that mends it."""
    sides = (side for side in (mismatch.stays, mismatch.moves) if side)
    facts = ", ".join(f"{side.text} is on {_devices(side)}" for side in sides)
    return f"{mismatch.scene.place}: {facts}.{why and ' '}{why}\n  Mend: {line}"


def _move(mismatch: Mismatch) -> str:
    """The plain remedy: move the one to the other."""
    moves, target = mismatch.moves, mismatch.target
    container, bracket, _ = moves.text.partition("[")
    if bracket and not isinstance(moves.value, nn.Module):
        return _note(mismatch, "", f'{container} = anydevice.move({container}, "{target}")')
    kept = "" if isinstance(moves.value, nn.Module) else f"{moves.text} = "
    return _note(mismatch, "", f'{kept}{moves.text}.to("{target}")')


def _dropped_result(mismatch: Mismatch, users: list[Scene]) -> str | None:
    """`x.to("cuda")` on a line of its own: a tensor's .to gives a new tensor."""
    for scene in users:
        for name, call in _dropped_moves(scene):
            if scene.resolve(name) is mismatch.moves.value:
                text = ast.unparse(name)
                why = f"Line {call.lineno} moves {text}, but drops the result."
                return _note(climb(mismatch, users), why, f"{text} = {ast.unparse(call)}")
    return None


def _dropped_moves(scene: Scene) -> Iterator[tuple[ast.expr, ast.Call]]:
    for node in ast.walk(scene.scope) if scene.scope else ():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in _MOVERS:
                yield function.value, node.value


def _plain_attribute(mismatch: Mismatch, users: list[Scene]) -> str | None:
    """A tensor kept as `self.scale = torch.…`, which Module.to leaves behind."""
    for scene, owner, name, value in _attributes(users):
        if value is mismatch.moves.value:
            why = f"Module.to left it behind, since {name} is a plain attribute."
            made = _assigned_source(scene, owner, name)
            return _note(mismatch, why, f'self.register_buffer("{name}", {made})')
    return None


def _plain_list(mismatch: Mismatch, users: list[Scene]) -> str | None:
    """Layers kept in a plain list or dict, which Module.to does not see."""
    layer = mismatch.moves.value
    for scene, owner, name, value in _attributes(users):
        items = list(value.values()) if isinstance(value, dict) else value
        if name.startswith("_") or not isinstance(items, list | tuple):
            continue
        if isinstance(layer, nn.Module) and any(item is layer for item in items):
            why = f"Module.to left it behind, since {name} is a plain {type(value).__name__}."
            kind = "ModuleDict" if isinstance(value, dict) else "ModuleList"
            made = _assigned_source(scene, owner, name)
            return _note(mismatch, why, f"self.{name} = nn.{kind}({made})")
    return None


def _attributes(users: list[Scene]) -> Iterator[tuple[Scene, nn.Module, str, object]]:
    """The plain attributes of the modules whose methods are running."""
    for scene in users:
        owner = scene.frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            for name, value in vars(owner).items():
                yield scene, owner, name, value


def _assigned_source(scene: Scene, owner: nn.Module, name: str) -> str:
    """What the class assigns to its attribute, as source; if unknown, the attribute itself."""
    made = scene.assigned(f"self.{name}", scene.class_body(type(owner).__name__))
    return ast.unparse(made) if made else f"self.{name}"


def _made_on_the_cpu(mismatch: Mismatch, users: list[Scene]) -> str | None:
    """A tensor made right here without a device: `torch.zeros(…)`."""
    scene, text = mismatch.scene, mismatch.moves.text
    inline = text.endswith(")")
    made = ast.parse(text, mode="eval").body if inline else scene.assigned(text, scene.scope)
    if not (isinstance(made, ast.Call) and makes_tensor(scene, made)):
        return None
    device = f'"{mismatch.target}"'
    if mismatch.stays and isinstance(mismatch.stays.value, torch.Tensor):
        device = f"{mismatch.stays.text}.device"
    call = f"{ast.unparse(made)[:-1]}{', ' if made.args or made.keywords else ''}device={device})"
    where = scene.line if inline else made.lineno
    why = f"Line {where} makes it without a device."
    return _note(mismatch, why, call if inline else f"{text} = {call}")


def _split_module(traceback: list[Scene]) -> str | None:
    """A network with layers on several devices: the layer that could not go on."""
    running = [s.frame.f_locals.get("self") for s in traceback if not s.is_users]
    for scene in _users(traceback):
        for subject in scene.subjects:
            if isinstance(subject.value, nn.Module) and len(subject.devices) > 1:
                paths = {id(module): path for path, module in subject.value.named_modules()}
                stopped = next((paths[id(m)] for m in running if paths.get(id(m))), "")
                target = next(device for device in subject.devices if device.type != "cpu")
                return (
                    f"{scene.place}: {subject.text} is {placement(subject.value).summary}"
                    f"{stopped and '; it stopped in layer '}{stopped}.\n"
                    f'  Mend: {subject.text}.to("{target}"), or keep it split with '
                    f"anydevice.place({subject.text}, {{…}}), which moves the activations"
                )
    return None


def _optimizer_state(users: list[Scene]) -> str | None:
    """An optimizer whose state was made or loaded before its parameters moved."""
    for scene in users:
        for text, optimizer in ((s.text, s.value) for s in scene.subjects):
            if isinstance(optimizer, torch.optim.Optimizer):
                for key, device, wanted in _strayed_state(optimizer):
                    return (
                        f"{scene.place}: {text} keeps its {key} on {device}, and its parameters "
                        f'are on {wanted}.\n  Mend: anydevice.move({text}, "{wanted}")'
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


def _devices(subject: Subject) -> str:
    return " and ".join(sorted(str(device) for device in subject.devices))
