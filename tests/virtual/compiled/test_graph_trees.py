"""What a program keeps of a CUDA graph's results is gone when the next step begins."""

import json
import os
from pathlib import Path

import pytest

from tests.forked import python

PROGRAM = """
import json, torch, torch._inductor.config
from anydevice import virtual
virtual.enable(1, hollow=HOLLOW)
torch._inductor.config.cpp.cxx = ("no-compiler",)

def said(use):
    try:
        use()
    except RuntimeError as error:
        return str(error)
    return ""

def compiled(f):
    torch.compiler.reset()
    return torch.compile(f, mode="reduce-overhead")

def doubled(x):
    return x * 2
x = torch.ones(4, device="cuda")
seen = {}
"""
INFERENCE = """
f = compiled(doubled)
first = f(x)
part = first[1:]
copy = first.clone()
before = said(lambda: first + 1)
second = f(x)
uses = [first.cpu,  lambda: first[0].item(), lambda: part + 1, first.data_ptr,
        lambda: first.add_(1), lambda: torch.zeros(4).copy_(first)]
uses += [] if HOLLOW else [lambda: print(first)]
seen["first"] = [said(lambda: first + 1)] + [said(use)[:40] for use in uses]
seen["fine"] = [before, said(lambda: second + copy), list(first.shape)]
third = f(x)
seen["second"] = said(lambda: second + 1)[:40]
fourth = f(x)
seen["replayed"] = said(lambda: third + fourth)
torch.compiler.cudagraph_mark_step_begin()
"""
TRAINING = """
weight = torch.ones(4, device="cuda", requires_grad=True)
f = compiled(lambda x: (x * weight).sin())
one = f(x)
two = f(x)  # the first still needs its backward pass
(one + two).sum().backward()
seen["one step"] = weight.grad.tolist() == (2 * x.cos()).tolist()
three = f(x)
seen["next step"] = [said(lambda: one + 1)[:40], said(lambda: weight.grad + 1)]
f = compiled(doubled)
weight.grad, kept = None, f(weight)
torch.compiler.cudagraph_mark_step_begin()
f(x)
seen["marked"] = said(lambda: kept + 1)[:40]

def broken(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2
f = compiled(broken)
seen["broken"] = [f(x).sum().item() for _ in range(4)]
"""
SKIPPED = """
from torch._dynamo.utils import counters
def grown(x):
    return x.add_(1) * 2
f = compiled(grown)
kept = [f(x) for _ in range(3)]
seen["mutated"] = [sum(kept).tolist(), counters["inductor"]["cudagraph_skips"]]
f = torch.compile(doubled)
kept = [f(x) for _ in range(3)]
seen["default"] = sum(kept).shape[0]
f = compiled(doubled)
for _ in range(4):
    kept = f(x)
torch.compiler.reset()
seen["reset"] = kept.shape[0]
"""
OVERWRITTEN = "Error: accessing tensor output of CUDAGr"


@pytest.mark.parametrize("hollow", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_result_that_is_kept_over_a_step_is_torchs_error(hollow: bool, tmp_path: Path) -> None:
    if hollow:
        pytest.importorskip("triton")
    program = tmp_path / "train.py"  # a file: torch names its lines
    text = PROGRAM + INFERENCE + TRAINING + SKIPPED + "print(json.dumps(seen))"
    program.write_text(text.replace("HOLLOW", str(hollow)))
    own = {"ANYDEVICE_COMPILE": "", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = python(program, env={**os.environ, **own})
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    whole, *others = seen["first"]
    assert whole.startswith(OVERWRITTEN)
    assert f"{program}" in whole
    assert "in doubled" in whole
    assert "return x * 2" in whole
    assert others == [OVERWRITTEN] * len(others)
    assert seen["fine"] == ["", "", [4]]
    assert seen["second"] == OVERWRITTEN
    assert seen["replayed"] == ""
    assert seen["marked"] == OVERWRITTEN
    assert seen["next step"][0] == OVERWRITTEN
    assert "gradient" in seen["next step"][1] or not seen["next step"][1]
    assert seen["mutated"][1] == 1
    assert seen["reset"] == seen["default"] == 4
    if not hollow:
        assert seen["one step"]
        assert seen["broken"] == [16.0] * 4
        assert seen["mutated"][0] == [18.0] * 4
