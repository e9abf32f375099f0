"""Sparse tensors, made of the values of a program."""

from typing import Any

import torch

from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.running import Running
from tests.conformance.random_programs.values import Twin

WITHOUT_VALUES = ["neg", "abs", "sin", "sqrt", "sign", "relu", "square", "expm1"]
DTYPES = (torch.float32, torch.float64)


def made(running: Running, choices: Choices) -> None:
    value = running.pick(choices, lambda v: v.dtype in DTYPES and v.dim > 0)
    if not running.contexts:
        mask = running.new(choices, value.shape, torch.bool, value.device)
        running.apply("a sparse one of", lambda t, m: (t * m).to_sparse(), value, mask)


def used(running: Running, choices: Choices) -> None:
    sparse = [v for v in running.values if not v.strided and v.dtype in DTYPES]
    if not sparse or running.contexts:
        return
    value = choices.among(sparse)
    name = choices.among(["to_dense", "coalesce", *WITHOUT_VALUES, "add", "mul", "transpose", "mm",
                          "sum", "values", "to", "clone", "mul_", "dense + sparse"])  # fmt: skip
    args: list[Any] = [value]
    function = getattr(torch.Tensor, name, None)
    if name in ("add", "mul"):
        alike = [v for v in sparse if v.shape == value.shape and v.device == value.device]
        args.append(choices.among([v for v in alike if v.dtype == value.dtype]))
    elif name in ("transpose", "sum"):
        args += [0, -1] if name == "transpose" else [0]
    elif name == "mm":
        args.append(dense(running, choices, value, [value.shape[-1], 2]))
    elif name == "to":
        args.append(choices.among(DTYPES))
    elif name == "mul_":
        args.append(2)
    elif name == "dense + sparse":
        function, args = torch.add, [dense(running, choices, value, value.shape), value]
    elif name == "values":
        function = torch.Tensor._values
    elif function is None:
        function = getattr(torch, name)
    running.apply(f"sparse {name}", function, *args)


def dense(running: Running, choices: Choices, value: Twin, shape: Any) -> Twin:
    return running.new(choices, shape, value.dtype, value.device)


KINDS = {"made_sparse": (made, 2), "used_sparse": (used, 3)}
