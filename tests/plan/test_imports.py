"""A plan imports what takes long only for a program that needs it."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from anydevice.plan.hollow import without_dynamo

PROGRAM = """
import sys
import torch
layers = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.RMSNorm(8), torch.nn.Linear(8, 1)
network = torch.nn.Sequential(*layers).to("cuda")
optimizer = torch.optim.Adam(network.parameters())
for _ in range(2):
    optimizer.zero_grad()
    network(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    assert torch.is_grad_enabled()
late = ["torch._dynamo", "sympy.core", "torch.distributed.fsdp", "torch.distributed.tensor"]
print([name for name in late if name in sys.modules])
import sympy
assert sympy.__version__ and sympy.__file__
from sympy import *
assert symbols("x") == Symbol("x")
import sympy.core
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false
assert isinstance(sympy.Symbol("x") + 1, sympy.Basic) and sympy.core is sys.modules["sympy.core"]
assert guard_or_false(ShapeEnv().create_unbacked_symint() == 3) is False
"""


def test_a_program_that_does_not_compile_needs_no_dynamo(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = [sys.executable, "-m", "anydevice", "plan", "--gpu", "t4", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[]" in done.stderr.splitlines(), done.stderr
    assert "the first 2 steps" in done.stdout


def untraced(function: Any) -> bool:
    """Whether a function that Dynamo must not trace, somewhere inside, does not ask Dynamo."""
    inner = inspect.getclosurevars(function).nonlocals.get("fn")
    return hasattr(inner, without_dynamo.KEPT) or (inner is not None and untraced(inner))


def test_all_is_as_before_once_the_program_imports_dynamo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "not_loaded_yet.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(without_dynamo, "DYNAMO", "not_loaded_yet")
    step = torch.optim.Rprop.step
    plain = torch.optim.Optimizer.zero_grad.__wrapped__  # type: ignore[attr-defined]
    before = step.__code__, torch._check_with  # type: ignore[attr-defined]
    with without_dynamo.without_dynamo():
        fmod = torch.ops.aten.fmod.Tensor.py_kernels[torch._C.DispatchKey.Meta]
        assert untraced(fmod), "the shapes of an op would import Dynamo"
        assert "graph_break" not in step.__code__.co_names
        with pytest.raises(ValueError, match="two"):
            torch._check_value(False, lambda: "two")
        import not_loaded_yet  # type: ignore[import-not-found]  # noqa: F401

        assert step.__code__ is before[0]
        assert getattr(plain, without_dynamo.KEPT, None) is not plain
    assert torch._check_with is before[1]  # type: ignore[attr-defined]
