"""Sizes of memory, in bytes and as people write them."""

import re

from anydevice.errors import UsageError

UNSET = "–"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}I": 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)}


def size_text(count: int | None) -> str:
    """A size as people say it: `size_text(2**30) == "1.0 GiB"`."""
    if count is None:
        return UNSET
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def size_of(text: int | str) -> int:
    """Bytes: `size_of("16GiB") == 2**34`, `size_of("16GB") == 16 * 10**9`, `size_of(5) == 5`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?|)B?\s*", str(text).upper(), re.ASCII)
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if size < 1:
        raise UsageError(
            f"expected a size such as 16GiB, 16GB, 512MiB or a number of bytes, got {text!r}."
        )
    return size
