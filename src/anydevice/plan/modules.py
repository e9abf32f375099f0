"""The bytes of a network's parts in few lines: layers that are alike share one."""

from __future__ import annotations

from collections import Counter

MODULES_SHOWN = 12
OUTSIDE = "outside modules"


def grouped(by_module: dict[str, int]) -> dict[str, int]:
    """Sums over modules whose names begin alike, as deep as they stay few.

    Modules that differ in a number only (`layers.0.norm`, `layers.1.norm`) then share a line.
    """
    names = {name: [name] if name.startswith(OUTSIDE) else name.split(".") for name in by_module}
    chosen = Counter[str]()
    for depth in range(1, 1 + max(map(len, names.values()), default=0)):
        groups = _added_up(by_module, names, depth)
        if chosen and len(groups) > MODULES_SHOWN:
            for parts in names.values():
                if len(parts) >= depth and parts[depth - 1].isdigit():
                    parts[depth - 1] = "*"
            groups = _added_up(by_module, names, depth)
            if len(groups) > MODULES_SHOWN:
                break
        chosen = groups
    return dict(chosen.most_common())


def _added_up(by_module: dict[str, int], names: dict[str, list[str]], depth: int) -> Counter[str]:
    groups = Counter[str]()
    for name, size in by_module.items():
        groups[".".join(names[name][:depth])] += size
    return groups
