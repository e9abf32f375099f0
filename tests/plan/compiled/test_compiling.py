"""`anydevice plan --compile`: what compiling an eager program would change."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anydevice.plan.answer import Plan
from anydevice.plan.command import parse
from anydevice.plan.hollow.compiled import WHOLE, Compiled
from anydevice.plan.hollow.program import Program
from anydevice.plan.planning import plan
from anydevice.virtual.compiled import choice, tracing
from anydevice.virtual.machine import virtual_gpus

pytest.importorskip("triton")

PROGRAM = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.up, self.norm = nn.Linear(width, 4 * width), nn.LayerNorm(4 * width)
        self.down = nn.Linear(4 * width, 10)
    def forward(self, x):
        x = self.norm(nn.functional.gelu(self.up(x)))
        print("between")
        return self.down(x)
model, loss = Net().cuda(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
forward, sizes = model, [1024, 512, 1024]
"""
LOOP = """
for size in sizes:
    out = forward(torch.rand(size, 512, device="cuda"))
    loss(out, torch.zeros(size, dtype=torch.long, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYDEVICE_COMPILE", raising=False)


def compared(folder: Path, change: str = "") -> Plan:
    program = folder / "train.py"
    program.write_text(PROGRAM + change + LOOP)
    answer = plan(Program((str(program),)), "h100", compile=True)
    assert isinstance(answer, Plan)
    return answer


def test_without_triton_one_line_says_so_and_the_plan_is_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    (verdict,) = compared(tmp_path).verdicts
    assert verdict.compiling is None
    assert verdict.run.notes == [
        "--compile: the plan is for the eager program alone, since Triton is not installed; "
        "pip install 'anydevice[compile]' brings it."
    ]
    assert parse(["--compile", __file__]).compile
    monkeypatch.setenv("ANYDEVICE_COMPILE", "eager")
    assert choice.unavailable() == "ANYDEVICE_COMPILE is eager"


@pytest.fixture
def hollow() -> Iterator[None]:
    with virtual_gpus(1, "h100", hollow=True):
        yield
        torch._dynamo.reset()
        gc.collect()  # no tensor of these GPUs is left to the next ones


def test_what_the_program_itself_calls_is_compiled_once_and_nothing_inside(
    hollow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def compile(network: nn.Module, **options: Any) -> Any:
        made.append(network)
        return network.forward

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(choice, "why_not", lambda: "")
    monkeypatch.setattr(Compiled, "_note_mode", lambda *_: None)
    whole = Compiled(WHOLE)
    with whole.seen():
        network = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
        head, on_host = nn.Linear(4, 2).cuda(), nn.Linear(4, 2)
        for _ in range(2):
            out = head(network(torch.ones(3, 4, device="cuda")))
            nn.CrossEntropyLoss()(out, torch.zeros(3, dtype=torch.long, device="cuda"))
            on_host(torch.ones(3, 4))
    assert made == [network, head]
    assert whole.networks == ["Sequential", "Linear"]


def test_a_module_compiled_in_place_is_entered_and_left(hollow: None) -> None:
    events = list[Any]()
    seen = Compiled(
        enter=lambda module, inputs: events.append(("enter", len(inputs))),
        leave=lambda module, inputs, output: events.append(("leave", output.shape)),
    )

    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight)

    network = Net(4, 2).cuda()
    with seen.seen():
        network.compile(backend="eager")
        network(x=torch.ones(3, 4, device="cuda"))
    assert events == [("enter", 1), ("leave", (3, 2))]
    assert seen.traced.graphs == 1


def test_what_dynamo_does_not_trace_breaks_where_the_program_calls_it() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.cells(x.sin())

    torch._dynamo.reset()
    with tracing.tracing() as traced:
        for network in Net(), nn.LSTM(4, 4):
            torch.compile(network, backend="eager")(torch.ones(2, 1, 4))
    torch._dynamo.reset()
    assert traced.breaks
    assert {each.where.partition(":")[0] for each in traced.breaks} == {"test_compiling.py"}


def test_dynamos_reasons_are_noted_with_their_lines() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        print("between")
        return x.cos()

    first = function.__code__.co_firstlineno
    torch._dynamo.reset()
    with tracing.tracing() as traced:
        compiled = torch.compile(function, backend="eager", dynamic=False)
        compiled(torch.ones(4))
        compiled(torch.ones(5))
    torch._dynamo.reset()
    assert traced.graphs == 4
    (cause,) = traced.breaks
    assert cause.where == f"test_compiling.py:{first + 2}"
    assert "`print`" in cause.reason
    assert traced.recompilations[0].where == f"test_compiling.py:{first}"
    assert {each.reason for each in traced.recompilations} == {
        "tensor 'x' size mismatch at index 0. expected 4, actual 5"
    }


@pytest.mark.long
def test_an_eager_program_is_shown_beside_itself_compiled(tmp_path: Path) -> None:
    answer = compared(tmp_path)
    compiling = answer["h100"].compiling
    assert compiling
    assert compiling.networks == ["Net"]
    assert compiling.eager.device_bytes == answer["h100"].run.device_bytes
    assert compiling.compiled.device_bytes < compiling.eager.device_bytes
    assert not compiling.itself
    (cause,) = compiling.traced.breaks
    assert cause.where == "train.py:11"
    assert "`print`" in cause.reason
    assert compiling.traced.graphs == 4
    assert compiling.traced.recompilations[0].reason == (
        "tensor 'x' size mismatch at index 0. expected 1024, actual 512"
    )
    text = str(answer)
    for shown in (
        "eager and compiled",
        "kernels in a step",
        "itself (Net)",
        "train.py:11",
    ):
        assert shown in text
    (found,) = json.loads(answer.to_json())["gpus"]
    assert found["compiling"]["graph_breaks"][0]["where"] == "train.py:11"
    assert found["compiling"]["eager"]["kernels"] > 10


@pytest.mark.long
def test_a_program_that_compiles_is_shown_beside_itself_eager(tmp_path: Path) -> None:
    change = "torch.compiler.reset(); forward, sizes = torch.compile(model), [1024] * 3"
    answer = compared(tmp_path, change)
    compiling = answer["h100"].compiling
    assert compiling
    assert compiling.itself
    assert compiling.compiled.device_bytes == answer["h100"].run.device_bytes
    assert compiling.eager.device_bytes > compiling.compiled.device_bytes
    assert "calls torch.compile itself" in str(answer)


@pytest.mark.long
def test_a_program_without_networks_has_nothing_to_compile(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nw = torch.ones(4, device='cuda', requires_grad=True)\n"
        "optimizer = torch.optim.SGD([w], lr=0.1)\n"
        "for _ in range(3):\n    (w * w).sum().backward()\n    optimizer.step()\n"
    )
    answer = plan(Program((str(program),)), "h100", compile=True)
    assert "calls no module" in str(answer)
