"""Figures as text: sizes, durations, numbers, counts, the names of signals."""

import re
import signal

from anydevice.errors import UsageError

UNSET = "–"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}I": 2 ** (10 * power) for power, unit in enumerate("KMGT", 1)}
SHORT = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))
# The unit, its seconds, and from how many seconds on it is used.
LONG = (
    ("d", 86400.0, 172e3),
    ("h", 3600.0, 5970.0),
    ("min", 60.0, 99.5),
)


def size_text(count: int | None) -> str:
    """A size in bytes: `size_text(2**30) == "1.0 GiB"`."""
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


def duration_text(seconds: float) -> str:
    """A duration: "12.3 ms", "42 s", "2 min", "1.5 h"; pages/draw.js writes them the same way."""
    for unit, length, least in LONG:
        if seconds >= least:
            return f"{_two_figures(seconds / length)} {unit}"
    for unit, length in SHORT:
        if seconds >= 0.9995 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns" if seconds else "0 s"


def _two_figures(number: float) -> str:
    return f"{number:.2g}" if number < 99.5 else f"{number:.0f}"


def number_text(number: float) -> str:
    """A number to three figures: `number_text(1234.5) == "1,230"`."""
    return f"{float(f'{number:.3g}'):,g}" if number < 1e6 else f"{float(f'{number:.3g}'):,.0f}"


def times_text(factor: float) -> str:
    """How many times as fast: `times_text(1234.5) == "1,230 ×"`."""
    return f"{number_text(factor)} ×"


def counted(count: int, noun: str) -> str:
    """How many there are: `counted(1, "run") == "1 run"`, `counted(2, "run") == "2 runs"`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def signal_name(number: int) -> str:
    """What a signal is called: `signal_name(9) == "SIGKILL"`."""
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")
