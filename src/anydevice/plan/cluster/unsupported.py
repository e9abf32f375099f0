"""What a program's first lines say that no plan can follow: found before anything is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from anydevice.errors import UsageError

OTHER_CODE = ("deepspeed", "horovod", "megatron", "colossalai", "transformer_engine", "nvshmem")
SYMMETRIC = "torch.distributed._symmetric_memory"
SHARED = (
    "expected a program whose ranks send to each other by collectives, got {}, which uses "
    "symmetric memory, where GPUs write to each other's: leave it out for the plan."
)
NEEDS_CODE = (
    "expected a program that uses PyTorch's own ops only, got {}, which needs code for a GPU "
    "({}): use PyTorch's ops where there is no GPU."
)


def refuse_what_it_imports(words: Sequence[str]) -> None:
    """Looks at the imports, which always run, of the program in this command.

    Raises:
        UsageError: If one is of a package that is not here and has separate CUDA code, or is
            PyTorch's symmetric memory.
    """
    for word in words:
        if word.endswith(".py") and Path(word).is_file():
            imports: list[tuple[int, str]] = []
            with suppress(SyntaxError, ValueError, OSError):
                imports += _imports(ast.parse(Path(word).read_bytes()))
            _refuse(Path(word), imports)
            return


def _refuse(file: Path, imports: list[tuple[int, str]]) -> None:
    for line, name in imports:
        package = name.partition(".")[0]
        if name.startswith(SYMMETRIC):
            raise UsageError(SHARED.format(f"{file.name}:{line}"))
        own = any((file.parent / each).exists() for each in (package, f"{package}.py"))
        if package in OTHER_CODE and not own and find_spec(package) is None:
            raise UsageError(NEEDS_CODE.format(f"{file.name}:{line}", package))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)
