"""State as two files: tensors in safetensors, everything else in JSON; no pickles.

>>> plain, tensors = taken_apart(optimizer.state_dict())
>>> optimizer.load_state_dict(put_together(plain, tensors))
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anydevice.errors import UsageError

TENSOR, TUPLE, ITEMS, ARRAY = "$tensor", "$tuple", "$items", "$array"
PLAIN = (str, int, float, bool, type(None))


def taken_apart(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """A tree that JSON can hold, and the tensors by the names that stand in their places."""
    tensors: dict[str, Tensor] = {}

    def apart(value: Any, path: str) -> Any:
        name = f"{len(tensors)}{path}"  # the number makes it one of its kind
        if isinstance(value, Tensor):
            tensors[name] = value.detach()
            return {TENSOR: name}
        if isinstance(value, np.ndarray):
            tensors[name] = torch.from_numpy(value.reshape(-1).copy().view(np.uint8))
            return {ARRAY: [name, str(value.dtype), list(value.shape)]}
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            named = all(isinstance(key, str) for key in value)
            if named:
                return {key: apart(part, f"{path}.{key}") for key, part in value.items()}
            items = value.items()
            return {ITEMS: [[apart(k, path), apart(part, f"{path}.{k}")] for k, part in items]}
        if isinstance(value, (list, tuple)):
            parts = [apart(part, f"{path}.{place}") for place, part in enumerate(value)]
            return {TUPLE: parts} if isinstance(value, tuple) else parts
        raise UsageError(
            "expected a state of tensors, numbers, text, lists and dictionaries, got "
            f"{type(value).__name__} at {path or 'its root'}: it could only be kept as a pickle, "
            "and pickles run code when they are loaded."
        )

    return apart(state, ""), tensors


def put_together(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `taken_apart` took apart."""
    if isinstance(plain, list):
        return [put_together(part, tensors) for part in plain]
    if not isinstance(plain, dict):
        return plain
    if plain.keys() == {TENSOR}:
        return tensors[plain[TENSOR]]
    if plain.keys() == {ARRAY}:
        path, dtype, shape = plain[ARRAY]
        return tensors[path].numpy().view(dtype).reshape(shape).copy()
    if plain.keys() == {TUPLE}:
        return tuple(put_together(part, tensors) for part in plain[TUPLE])
    if plain.keys() == {ITEMS}:
        return dict([put_together(part, tensors) for part in item] for item in plain[ITEMS])
    return {key: put_together(part, tensors) for key, part in plain.items()}
