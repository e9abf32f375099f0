"""The order of the rooms: written once, in CONTRIBUTING.md, and held by every import in src/."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anydevice"
FACE = ("__init__", "__main__")  # they name every room, and only lazily

Order = dict[str, int]


def order() -> Order:
    """Each room's height, 0 for the ground; a line of the list may name several rooms."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    block = next(each for each in text.split("\n\n") if each.startswith("    cli"))
    lines = [line.strip() for line in block.splitlines() if not line.startswith("     ")]
    rooms = [re.split(r"\s{2,}", line)[0].split(", ") for line in lines]
    return {room: height for height, names in enumerate(reversed(rooms)) for room in names}


@cache
def modules(package: Path) -> dict[str, ast.Module]:
    """Every module by its dotted name within the package."""
    files = sorted(package.rglob("*.py"))
    return {
        ".".join(file.relative_to(package).with_suffix("").parts): ast.parse(
            file.read_text("utf-8")
        )
        for file in files
    }


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """What a module imports from the package, at its head, lazily, or for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names = [part.value for part in node.args if isinstance(part, ast.Constant)]
        else:
            continue
        for name in names:
            if str(name).startswith("anydevice."):
                yield str(name).removeprefix("anydevice."), node.lineno


def upward(package: Path, heights: Order) -> list[str]:
    """Imports from a room that is not below; on the ground, each may import the others."""
    found = []
    for module, tree in modules(package).items():
        room = module.split(".")[0]
        for name, line in imports(tree) if room not in FACE else ():
            other = heights.get(name.split(".")[0], 0)  # a name of the face, such as UsageError
            is_below = other < heights[room] or other == heights[room] == 0
            if name.split(".")[0] != room and not is_below:
                found.append(f"{module}:{line} imports {name}")
    return found


def private_elsewhere(package: Path) -> list[str]:
    """Uses of a `_private` name that a module of another folder defines, and none of this one."""
    trees = modules(package)
    defined = {module: set(_private_definitions(tree)) for module, tree in trees.items()}
    found = []
    for module, tree in trees.items():
        near = set().union(
            *(names for m, names in defined.items() if _folder(m) == _folder(module))
        )
        far = {each: m for m, names in defined.items() for each in names - near}
        for kind, name, line in _private_uses(tree):
            if (kind, name) in far:
                found.append(f"{module}:{line} uses {name} of {far[kind, name]}")
    return found


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def _private_definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """A module's private names, and those of its objects."""
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            kind, name = "module" if id(node) in top else "object", node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            kind, name = "module", node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            kind, name = "object", node.attr
        else:
            continue
        if _is_private(name):
            yield kind, name


def _private_uses(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    ours, foreign = _imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("anydevice"):
            for alias in filter(lambda each: _is_private(each.name), node.names):
                yield "module", alias.name, node.lineno
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls") and owner.split(".")[0] not in foreign:
                yield "module" if owner in ours else "object", node.attr, node.lineno


def _imported(tree: ast.Module) -> tuple[set[str], set[str]]:
    """What a module calls parts of this package, and what parts of torch and others."""
    ours, foreign = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            (ours if "anydevice" in ast.unparse(node) else foreign).update(names)
    return ours, foreign


def _is_private(name: str) -> bool:
    """Whether a name is private, and not one that objects of torch have too."""
    torchs = any(hasattr(kind, name) for kind in (torch.Tensor, torch.nn.Module))
    return name.startswith("_") and not name.startswith("__") and name != "_" and not torchs


def test_every_room_has_its_place_in_the_order() -> None:
    rooms = {module.split(".")[0] for module in modules(PACKAGE)} - set(FACE)
    assert rooms == set(order())


def test_a_room_imports_only_from_rooms_below_it() -> None:
    assert upward(PACKAGE, order()) == []


def test_no_private_name_is_used_from_another_folder() -> None:
    assert private_elsewhere(PACKAGE) == []


@pytest.mark.parametrize(
    "planted",
    [
        "from anydevice.sweep.sweep import Sweep",
        "def later():\n    from anydevice.sweep import grid",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import anydevice.sweep.sweep",
        "from importlib import import_module\nimport_module('anydevice.sweep.sweep')",
    ],
)
def test_an_import_from_above_is_found(tmp_path: Path, planted: str) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "planted.py").write_text(planted)
    assert [each.split(":")[0] for each in upward(tmp_path, order())] == ["plan.planted"]


DEFINES = "def _step(): ...\nclass Trial:\n    def _step(self): ..."


@pytest.mark.parametrize("planted", ["from anydevice.train.trial import _step", "trial._step"])
def test_a_private_name_of_another_room_is_found(tmp_path: Path, planted: str) -> None:
    for room, text in {"train": DEFINES, "plan": planted}.items():
        (tmp_path / room).mkdir()
        (tmp_path / room / "trial.py").write_text(text)
    assert private_elsewhere(tmp_path) == ["plan.trial:1 uses _step of train.trial"]
