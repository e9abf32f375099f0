"""Backends other than Inductor: a program's own is called as on a card; PyTorch's run op by op."""

import numpy as np
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


CALLING_INDUCTOR = """
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

def by_itself(module, inputs):
    return compile_fx(module, inputs)

def graph_by_graph(module, inputs):
    def inner(graph, given, **options):
        seen.append(len(given))
        return compile_fx_inner(graph, given, **options)
    return compile_fx(module, inputs, inner, decompositions=select_decomp_table())

def gradients(backend):
    x = torch.linspace(-1, 1, 12, device="cuda").view(3, 4).requires_grad_()
    called = torch.compile(square, backend=backend) if backend else square
    called(x).sum().backward()
    return x.grad.tolist()

def square(x):
    return (x @ x.t()).sin().exp()

seen = []
graphs = aot_autograd(fw_compiler=compile_fx_inner, decompositions=select_decomp_table())
answers = [gradients(each) for each in (None, by_itself, graph_by_graph, graphs)]
made = make_fx(lambda x: (x.sin(),))(torch.ones(2, device="cuda"))
[sines] = compile_fx_inner(made, [torch.ones(2, device="cuda")])((torch.zeros(2, device="cuda"),))
print(json.dumps([answers, seen, sines.tolist()]))
"""


@pytest.mark.long
def test_a_backend_of_the_programs_own_may_call_inductor() -> None:
    [expected, *compiled], seen, sines = run(
        "virtual.enable()" + CALLING_INDUCTOR, ANYDEVICE_COMPILE=""
    )
    assert len(seen) == 2  # forward and backward
    assert sines == [0, 0]  # called with a tuple
    for gradient in compiled:
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)


KEPT = """
import tempfile
from torch._inductor import CompiledArtifact, standalone_compile
from torch.fx.experimental.proxy_tensor import make_fx
virtual.enable()
x = torch.tensor([0.0, 1.0])
graph = make_fx(lambda x: (x.exp(),), tracing_mode="fake")(x)
from torch._dynamo.utils import counters
torch.compile(lambda x: (x + 1).exp())(x.cuda())
compiled = standalone_compile(graph, [x], dynamic_shapes="from_graph")
with tempfile.TemporaryDirectory() as folder:
    compiled.save(path=folder + "/kept", format="binary")
    kept = CompiledArtifact.load(path=folder + "/kept", format="binary")
    same = torch.equal(kept(x)[0], x.exp())
print(json.dumps([same, counters["inductor"]["fxgraph_cache_bypass"]]))
"""


@pytest.mark.long
def test_what_is_compiled_is_kept_in_inductors_cache_and_can_be_saved_for_the_host() -> None:
    same, not_kept = run(KEPT, ANYDEVICE_COMPILE="")
    assert same
    assert not_kept == 0  # for a GPU, too: Inductor finds it in its cache in the next process


SHOWN = """
import torch._inductor.config as config
from torch.utils._debug_mode import DebugMode
virtual.enable()
config.wrap_inductor_compiled_regions = True
config.cpp.cxx = ("no-compiler",)
x = torch.arange(3.0, device="cuda")
seen = []
compiled = torch.compile(lambda x: torch.nn.functional.dropout(x + 1, 0.5).sin())
expected = [torch.manual_seed(0), compiled(x)][1]
with DebugMode() as mode:
    torch.manual_seed(0)
    same = torch.equal(compiled(x), expected)
calls = [line.split("(")[0].strip() for line in mode.debug_string().splitlines()]
print(json.dumps([same, [each for each in calls if "inductor" in each or "aten::sin" in each]]))
"""


def test_a_compiled_graph_is_one_op_to_a_dispatch_mode_if_inductor_is_asked_so() -> None:
    same, calls = run(SHOWN, ANYDEVICE_COMPILE="")
    assert same
    assert calls == ["torch.ops.higher_order.inductor_compiled_code"]
