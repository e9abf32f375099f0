"""Times and rates as people write them, to three figures."""


def time_text(seconds: float) -> str:
    """A duration: `time_text(0.0123) == "12.3 ms"`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{number_text(seconds / size)} {unit}"
    return f"{number_text(seconds / 1e-9)} ns"


def times_text(factor: float) -> str:
    """How many times as fast: `times_text(1234.5) == "1,230 ×"`."""
    return f"{number_text(factor)} ×"


def number_text(number: float) -> str:
    """A number to three figures: `number_text(1234.5) == "1,230"`."""
    return f"{float(f'{number:.3g}'):,g}" if number < 1e6 else f"{float(f'{number:.3g}'):,.0f}"
