"""What a plan of a compiled program says: kernels, bytes, memory, and what it could not know."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import anydevice as ad
from anydevice import system
from anydevice.plan.hollow import compilations, sandbox
from anydevice.plan.hollow.blocks import WORKSPACE
from anydevice.plan.hollow.program import Program
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.planning import plan
from anydevice.plan.time.work import Op

pytest.importorskip("triton")
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs compile, and set flags, which PyTorch's own test suite forbids once imported."""
    monkeypatch.delenv("ANYDEVICE_COMPILE", raising=False)
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        yield


MODEL = """
import sys, torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.up, self.act = nn.Linear(width, 4 * width), nn.GELU()
        self.norm = nn.LayerNorm(4 * width)
        self.down = nn.Linear(4 * width, 10)
    def forward(self, x):
        x = self.norm(self.act(self.up(x)))
        if BREAKS:
            print("between")
        return self.down(x)
BREAKS = False
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step, forward, sizes = optimizer.step, model, [1024] * 5
"""
LOOP = """
for size in sizes:
    out = forward(torch.rand(size, 512, device="cuda"))
    (out.logsumexp(1).mean() if out.dim() else out).backward()
    step()
    optimizer.zero_grad()
"""


def planned(folder: Path, change: str = "", gpu: str = "h100") -> HollowRun:
    program = folder / "train.py"
    program.write_text(MODEL + change + LOOP)
    return plan(Program((str(program),)), gpu).verdicts[0].run


def kernels(run: HollowRun) -> list[Op]:
    assert run.work
    return [op for op in run.work.ops if op.kernels]


def written(run: HollowRun) -> list[Op]:
    """Those that Inductor wrote."""
    return [op for op in kernels(run) if op.name.startswith("triton_")]


@pytest.mark.skipif(not system.LINUX, reason="no compiler is started there")
def test_a_compiled_step_has_inductors_kernels_and_less_memory(tmp_path: Path) -> None:
    eager = planned(tmp_path)
    run = planned(tmp_path, "forward = torch.compile(model)")
    assert not run.notes
    assert run.steps == 3
    assert {op.host for op in written(run)} == {"compiled"}
    assert sum(op.bytes for op in kernels(run)) < 0.95 * sum(op.bytes for op in kernels(eager))
    assert run.tensors < eager.tensors
    (norm,) = (op for op in written(run) if "gelu_native_layer_norm" in op.name and not op.backward)
    rows = 4 * 1024 * 2048
    assert 2 * rows < norm.bytes < 3.1 * rows  # the input, once or twice, and the result
    forward, backward = (op for op in run.work.ops if op.name == "compiled graph")
    assert (forward.backward, backward.backward) == (False, True)
    assert run.kinds["up"] == "Linear"  # by its own name, not by that of a wrapper
    assert any(block.module == "Net" for block in run.blocks)


def test_where_no_compiler_can_be_started_it_is_planned_as_written_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sandbox.CHOICE, "calls")
    run = planned(tmp_path, "forward = torch.compile(model)")
    assert not written(run)
    assert any("since this system cannot keep a compiler from writing" in n for n in run.notes)


def test_switched_off_it_is_planned_as_written_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYDEVICE_COMPILE", "eager")
    run = planned(tmp_path, "forward = torch.compile(model)")
    assert not written(run)
    (note,) = run.notes
    assert note == (
        "torch.compile: predicted for the program as written, since ANYDEVICE_COMPILE is eager; "
        "compiled, it usually takes less memory and time."
    )


def broken(run: HollowRun) -> set[str]:
    """The files in which Dynamo left its graphs."""
    return {each.where.partition(":")[0] for each in run.traced.breaks}


CHANGES: dict[str, tuple[str, Any]] = {
    "cuda graphs": (
        "forward = torch.compile(model, mode='reduce-overhead')",
        lambda run: (
            {op.host for op in written(run)} == {"replayed"}
            and "CUDA graphs" in run.notes[0]
            and len([block for block in run.blocks if block.category == WORKSPACE]) == 1
        ),
    ),
    "autotuned": (
        "forward = torch.compile(model, mode='max-autotune-no-cudagraphs')",
        lambda run: "heuristics" in run.notes[0] and len(written(run)) > 3,
    ),
    "dynamic": (
        "forward, sizes = torch.compile(model, dynamic=True), [512, 768, 1024, 2048]",
        lambda run: written(run) and not run.notes,
    ),
    "sizes change": (
        "forward, sizes = torch.compile(model), [512, 768, 1024, 2048]",
        lambda run: written(run) and not run.notes,
    ),
    "full graph": (
        "import math\n"
        "scaled = lambda x: model(x) / math.sqrt(x.shape[1])\n"
        "forward = torch.compile(scaled, fullgraph=True)",
        written,
    ),
    "branches on values": (
        "def checked(x):\n"
        "    x = model(x)\n"
        "    if torch.isnan(x).any():\n"
        "        raise ValueError\n"
        "    print(x.mean().item())\n"
        "    return x\n"
        "forward = torch.compile(checked)",
        lambda run: (
            broken(run) == {"train.py"} and written(run) and "checks of values" in run.notes[0]
        ),
    ),
    "graph breaks": (
        "BREAKS, forward = True, torch.compile(model)",
        lambda run: sum(op.name == "compiled graph" for op in run.work.ops) == 4,
    ),
    "in place": ("model.compile()", written),
    "step": (
        "step = torch.compile(step)",
        lambda run: (
            {op.name for op in written(run)} == {"triton_for_fused_0"}
            and run.steps == 3
            and broken(run) == {"optimizer.py"}  # where PyTorch asks for it
        ),
    ),
    "step in a function": (
        "def whole(x):\n"
        "    model(x).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    return torch.zeros((), device='cuda', requires_grad=True)\n"
        "forward, step = torch.compile(whole), lambda: None",
        lambda run: run.steps == 3 and broken(run) == {"train.py", "optimizer.py"},
    ),
    "regions": (
        "model.up, model.norm = torch.compile(model.up), torch.compile(model.norm)",
        lambda run: any("layer_norm" in op.name for op in written(run)),
    ),
    "own backend": (
        "own = lambda module, inputs: lambda *given: [x.relu() for x in module(*given)]\n"
        "forward = torch.compile(model, backend=own)",
        lambda run: any("relu" in op.name for op in kernels(run)) and not written(run),
    ),
    "cuda graphs alone": (
        "forward = torch.compile(model, backend='cudagraphs')",
        lambda run: {"replayed"} == {op.host for op in kernels(run) if "gelu" in op.name},
    ),
    "function": (
        "forward = torch.compile(lambda x: model(x).square().mean())",
        lambda run: any("mean" in op.name for op in written(run)),
    ),
}


# One of them in `make test`: Dynamo comes past all that watches a step.
ALWAYS = "step in a function"


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each == ALWAYS else pytest.mark.long) for each in CHANGES],
)
def test_torch_compile_is_planned_however_it_is_called(name: str, tmp_path: Path) -> None:
    change, holds = CHANGES[name]
    assert holds(planned(tmp_path, change))


@pytest.mark.long
def test_flex_attention_is_priced_by_its_mask(tmp_path: Path) -> None:
    flops = {}
    for mask, rule in {"causal": "q >= k", "window": "(q >= k) & (q - k < 64)"}.items():
        program = tmp_path / "train.py"
        text = (HERE.parent / "programs" / "flex_attention.py").read_text()
        program.write_text(text.replace("q >= k", rule).replace("256", "1024"))
        run = plan(Program((str(program),)), "h100").verdicts[0].run
        attention = [op for op in kernels(run) if "flex_attention" in op.name and op.products]
        assert len(attention) == 2  # forward and backward
        flops[mask] = sum(product.flops for op in attention for product in op.products)
    whole = 2 * 7 * 2 * 4 * 1024 * 1024 * 16
    assert flops["causal"] == pytest.approx(0.5 * whole, rel=0.1)
    assert flops["window"] == pytest.approx(0.06 * whole, rel=0.2)


@pytest.mark.long
def test_what_a_plan_compiled_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(compilations, "folder", lambda name: kept)
    first = planned(tmp_path, "forward = torch.compile(model)")
    files = {path: path.stat().st_mtime for path in kept.rglob("*") if path.is_file()}
    assert any("fxgraph" in str(path) for path in files)
    second = planned(tmp_path, "forward = torch.compile(model)")
    assert {path: path.stat().st_mtime for path in kept.rglob("*") if path.is_file()} == files
    assert [op.name for op in kernels(second)] == [op.name for op in kernels(first)]
    assert second.tensors == first.tensors


@pytest.mark.long
def test_nanogpt_gains_what_its_readme_says() -> None:
    """Its README: from about 250 ms to 135 ms for an iteration, 1.85 times."""
    program = str(HERE / "nanogpt.py")
    eager, compiled = (
        plan(Program((program, mode)), "a100-40gb")["a100-40gb"] for mode in ("eager", "compile")
    )
    assert eager.time
    assert compiled.time
    assert eager.time.seconds / compiled.time.seconds == pytest.approx(1.85, rel=0.1)
    assert compiled.run.tensors < 0.75 * eager.run.tensors


@pytest.mark.long
def test_a_fullgraph_error_is_dynamos_own(tmp_path: Path) -> None:
    with pytest.raises(ad.UsageError, match="Unsupported"):
        planned(tmp_path, "BREAKS, forward = True, torch.compile(model, fullgraph=True)")


@pytest.mark.long
def test_a_compiled_branch_on_a_value_is_refused_as_an_eager_one_is(tmp_path: Path) -> None:
    change = "def halved(x):\n    x = model(x)\n    if x.mean() > 1:\n        x = x / 2\n"
    change += "    for _ in range(2):\n        x = x + 1\n    return x\n"
    for forward in ("halved", "torch.compile(halved)"):
        with pytest.raises(
            ad.UsageError, match=r"got train\.py:21, which branches on what it read"
        ):
            planned(tmp_path, f"{change}forward = {forward}")


FED_BACK = """
import torch
@torch.compile(mode="reduce-overhead")
def decode(x):
    return torch.sin(x) + 1
token = torch.ones(8, device="cuda")
for _ in range(3):
    token = decode(token)
"""


@pytest.mark.long
def test_a_result_that_the_next_replay_overwrites_is_the_cards_error(tmp_path: Path) -> None:
    program = tmp_path / "generate.py"
    program.write_text(FED_BACK)
    with pytest.raises(ad.UsageError, match=r"got generate\.py:\d, .* has been overwritten"):
        plan(Program((str(program),)), "h100")
    program.write_text(FED_BACK.replace("decode(token)", "decode(token.clone())"))
    assert plan(Program((str(program),)), "h100")
