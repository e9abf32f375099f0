"""Parameters and figures as JSON can hold them; NaN and infinities become text and back."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from anydevice.errors import UsageError

MOST = 2**1023  # what a float can hold, and so what can be compared and drawn
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parameter(name: str, value: Any) -> Any:
    """A parameter's value as it is stored: numpy's numbers become Python's, a device its name."""
    value = _plainer(value)
    if isinstance(value, (list, tuple)):
        return tuple(parameter(name, part) for part in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: parameter(name, part) for key, part in value.items()}
    if value is None or isinstance(value, (str, bool, int)):
        return _not_huge(name, value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise UsageError(
        f"expected numbers, text, true or false, lists or dictionaries for {name}, got {value!r}, "
        "which cannot be stored: give its name or number, and make it in the experiment."
    )


def figure(name: str, value: Any) -> Any:
    """A figure as it is stored; reading a tensor waits for its device."""
    value = _plainer(value)
    if hasattr(value, "detach"):
        value = value.detach().tolist()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [figure(name, part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): figure(name, part) for key, part in value.items()}
    if value is None or isinstance(value, (str, bool, int, float)):
        return _not_huge(name, value)
    raise UsageError(
        f"expected figures that are numbers or text, got {type(value).__name__} for {name!r}."
    )


def strict(value: Any) -> Any:
    """The value for strict JSON: NaN and the infinities as text, and text as UTF-8 can hold it."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return next(text for text, number in NOT_FINITE.items() if repr(number) == repr(value))
    if isinstance(value, Mapping):
        return {strict(key): strict(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [strict(part) for part in value]
    return value


def lenient(value: Any) -> Any:
    """The value that `strict` was given."""
    if isinstance(value, str):
        return NOT_FINITE.get(value, value)
    if isinstance(value, list):
        return [lenient(part) for part in value]
    if isinstance(value, dict):
        return {key: lenient(part) for key, part in value.items()}
    return value


def is_number(value: Any) -> bool:
    """Whether it can be compared and drawn; true and false do not count."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < MOST
    return isinstance(value, float)


def _not_huge(name: str, value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= MOST:
        raise UsageError(
            f"expected a number below 2**1023 for {name!r}, got one of {value.bit_length()} bits."
        )
    return value


def _plainer(value: Any) -> Any:
    """Numpy's and torch's numbers as Python's, torch's devices and paths as text."""
    kind = type(value)
    if kind.__module__.partition(".")[0] in ("numpy", "torch"):
        if kind.__name__ == "device":
            return str(value)
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            return value.item()
    return str(value) if hasattr(value, "__fspath__") else value
