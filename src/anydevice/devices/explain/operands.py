"""What met at the failing expression: its operands, each with the device it is known to be on."""

import ast
from collections.abc import Iterator

import torch
from torch import nn

from anydevice.devices.explain.scene import MISSING, Scene, Subject, parts, subject

# Those that make a tensor on the default device unless `device=` says otherwise.
FACTORIES = (
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand"),
    *("randint", "randn", "randperm", "tensor", "zeros"),
)
MOVERS = ("to", "cuda", "cpu", "xpu", "mps")


def operands(scene: Scene) -> list[Subject]:
    """The sides of the expression that failed; those whose device is unknown are left out."""
    node = scene.expression
    if isinstance(node, ast.BinOp):
        sides: list[ast.expr] = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.AugAssign):
        sides = [node.target, node.value]
    elif isinstance(node, ast.Subscript):
        sides = [node.value, node.slice]
    elif isinstance(node, ast.Call):
        called = node.func.value if _is_method(scene, node) else node.func  # type: ignore[attr-defined]
        sides = [called, *node.args, *(keyword.value for keyword in node.keywords)]
    else:
        sides = []
    found: list[Subject] = []
    for side in (one for expression in sides for one in _side(scene, expression)):
        if side.value is None or not any(side.value is other.value for other in found):
            found.append(side)
    return found


def makes_tensor(scene: Scene, node: ast.AST | None) -> bool:
    """Whether this is a call like `torch.zeros(3)`, which names no device."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    is_torch = name in FACTORIES and scene.resolve(node.func) is getattr(torch, name)
    return is_torch and not any(keyword.arg in (None, "device") for keyword in node.keywords)


def moved_to(scene: Scene, call: ast.Call) -> torch.device | None:
    """The device that `x.to("cuda")`, `x.cuda()` or the like gives; None if it is unknown."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method not in MOVERS:
        return None
    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "device")]
    value = _constant(scene, given[0]) if given else method if method != "to" else None
    if isinstance(value, int) and method != "to":
        return torch.device(method, value)
    if isinstance(value, torch.Tensor):
        return value.device
    try:
        return torch.device(value) if isinstance(value, str | torch.device) else None
    except RuntimeError:
        return None


def _side(scene: Scene, node: ast.expr) -> Iterator[Subject]:
    """The subjects that an operand stands for: one, those of a container, or none."""
    value = scene.resolve(node)
    if value is not MISSING:
        yield from parts(ast.unparse(node), value)
    elif isinstance(node, ast.Starred):
        yield from _side(scene, node.value)
    elif isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _side(scene, element)
    elif isinstance(node, ast.Dict):
        for element in node.values:
            yield from _side(scene, element)
    elif isinstance(node, ast.BinOp):
        yield from _common(_side(scene, node.left), _side(scene, node.right))
    elif isinstance(node, ast.UnaryOp):
        yield from _side(scene, node.operand)
    elif isinstance(node, ast.Subscript):  # x[mask] is where x is
        yield from _side(scene, node.value)
    elif isinstance(node, ast.Call):
        yield from _result(scene, node)


def _result(scene: Scene, call: ast.Call) -> Iterator[Subject]:
    """What a call gives: a tensor made here, a tensor moved here, or one on its owner's device."""
    text = ast.unparse(call)
    device = moved_to(scene, call)
    function = subject(text, scene.resolve(call.func))
    if makes_tensor(scene, call):
        yield Subject(text, None, frozenset([torch.device("cpu")]))
    elif device is not None:
        yield Subject(text, None, frozenset([device]))
    elif function and isinstance(function.value, nn.Module) and len(function.devices) == 1:
        yield Subject(text, None, function.devices)
    elif _is_method(scene, call):
        yield from _side(scene, call.func.value)  # type: ignore[attr-defined]


def _is_method(scene: Scene, call: ast.Call) -> bool:
    """Whether a tensor's own method is called: its result is where the tensor is."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr in MOVERS:
        return False
    owner = call.func.value
    known = scene.resolve(owner)
    return isinstance(known, torch.Tensor) or (
        known is MISSING and isinstance(owner, ast.Call | ast.BinOp | ast.Subscript | ast.UnaryOp)
    )


def _common(left: Iterator[Subject], right: Iterator[Subject]) -> Iterator[Subject]:
    """Two sides that went together before: on a GPU if either is (the other is then a scalar)."""
    both = [*left, *right]
    on_gpu = [one for one in both if any(device.type != "cpu" for device in one.devices)]
    yield from on_gpu or both


def _constant(scene: Scene, node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else scene.resolve(node)
