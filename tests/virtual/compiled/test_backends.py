"""Backends other than Inductor: a program's own is called as on a card; PyTorch's run op by op."""

import pytest

from tests.virtual.own_process import run

PROGRAM = """
from torch import nn
from torch._dynamo import register_backend
network, seen = nn.Sequential(nn.Linear(8, 4), nn.GELU()), []

def own(module, inputs):
    seen.append([type(module).__name__, *(str(each.device) for each in inputs)])
    def called(*given):
        seen.append("called")
        return [2 * each for each in module(*given)]
    return called

def trained(backend):
    seen.clear()
    torch._dynamo.reset()
    x = torch.ones(2, 8, device="cuda")
    compiled = torch.compile(network, backend=backend)
    for _ in range(2):
        result = compiled(x)
        result.sum().backward()
    with torch.no_grad():
        return torch.equal(result, 2 * network(x)), torch.equal(result, network(x)), list(seen)

def answers():
    network.cuda()
    register_backend(own, name="mine")
    named = {name: trained(name) for name in ("eager", "aot_eager", "cudagraphs", "mine")}
    torch.compiler.set_default_backend(own) if hasattr(torch.compiler, "set_default_backend") else 0
    return {**named, "own": trained(own), "default": trained(None)}
"""


@pytest.mark.parametrize("chosen", [pytest.param("", marks=pytest.mark.long), "eager"])
def test_a_backend_of_the_programs_own_is_called_and_those_of_pytorch_run(chosen: str) -> None:
    program = PROGRAM + "virtual.enable()\nprint(json.dumps(answers()))"
    seen = run(program, ANYDEVICE_COMPILE=chosen)
    for name in ("eager", "aot_eager", "cudagraphs"):
        assert seen[name] == [False, True, []]
    graph, *calls = seen["mine"][2]
    assert graph == ["GraphModule", *["cuda:0"] * 3]
    assert calls == ["called"] * 2
    assert seen["mine"][:2] == [True, False]
    assert seen["own"] == seen["default"] == seen["mine"]
