"""torch.compile on virtual GPUs that compute: a card's graphs, a card's random numbers."""

import pytest

from tests.virtual.own_process import run

COMPILED = {"ANYDEVICE_COMPILE": ""}
NETWORK = """
from torch import nn
import torch._dynamo
class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 64), nn.LayerNorm(64), nn.Linear(64, 4)
        self.dropout, self.breaks = nn.Dropout(dropout), False
    def forward(self, x):
        x = self.norm(torch.nn.functional.gelu(self.up(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.down(self.dropout(x))

def trained(compiles, dropout, breaks=False):
    torch.manual_seed(0)
    network = Net(dropout).cuda()
    network.breaks = breaks
    forward = torch.compile(network) if compiles else network
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = forward(torch.randn(8, 16, device="cuda")).logsumexp(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
virtual.enable()
"""


def test_graphs_breaks_and_random_numbers_are_those_of_a_card() -> None:
    """Without a C++ compiler: graphs run op by op."""
    seen = run(
        NETWORK
        + """
import torch._inductor.config
torch._inductor.config.cpp.cxx = ("no-compiler",)
from torch._dynamo.utils import counters
seen = {"eager": trained(False, 0.5), "compiled": trained(True, 0.5)}
seen["graphs"] = counters["stats"]["unique_graphs"]
network = Net(0.5).cuda()
network.breaks = True
x = torch.randn(8, 16, device="cuda")
said = torch._dynamo.explain(network)(x)
seen["explained"] = [said.graph_count, said.graph_break_count]
try:
    torch.compile(network, fullgraph=True)(x)
except torch._dynamo.exc.Unsupported as error:
    seen["full"] = "graph_break" in str(error)
def drawn(x):
    return torch.bernoulli(x), torch.rand_like(x), torch.rrelu(x, training=True)
seen["drawn"] = []
for draw in (drawn, torch.compile(drawn, fullgraph=True)):
    torch.manual_seed(0)
    seen["drawn"].append([each.tolist() for each in draw(torch.full((3, 5), 0.5, device="cuda"))])
print(json.dumps(seen))
""",
        **COMPILED,
    )
    assert seen["drawn"][0] == seen["drawn"][1]
    assert seen["compiled"] == pytest.approx(seen["eager"], rel=1e-6)  # the same dropout
    assert seen["graphs"] == 1
    assert seen["explained"] == [2, 1]
    assert seen["full"] is True


@pytest.mark.long
def test_switched_off_programs_run_as_they_are_written() -> None:
    seen = run(
        NETWORK
        + """
from torch._dynamo.utils import counters
same = trained(False, 0.0) == trained(True, 0.0)
print(json.dumps([same, "inductor" in counters]))
""",
        ANYDEVICE_COMPILE="eager",
    )
    assert seen == [True, False]


@pytest.mark.long
def test_inductors_code_for_the_cpu_computes_on_the_gpus_bytes() -> None:
    seen = run(
        NETWORK.replace("enable()", "enable(2)")
        + """
torch.cuda.reset_peak_memory_stats()
eager, most = trained(False, 0.0), torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats()
from torch._inductor import metrics
whole = trained(True, 0.0)
compiled = [metrics.generated_kernel_count, torch.cuda.max_memory_allocated()]
broken = trained(True, 0.0, breaks=True)

@torch.compile
def changed(x, y):
    x.add_(1)
    return x[1:], y.t() * 2, x.sum().cpu()
x, y = torch.ones(4, 3, device="cuda"), torch.ones(2, 3, device="cuda")
view, turned, total = changed(x, y)
view.mul_(5)
for rows in (5, 6, 7):
    changed(torch.ones(rows, 3, device="cuda"), y)
def across(x):
    return x + 1, x.to("cuda:1") * 2
x1, x2 = torch.compile(across, fullgraph=True)(y)
seen = [str(x1.device), str(x2.device), x2.sum().item()]

filtered = torch.compile(torch.nn.Conv2d(2, 3, 1, bias=False).cuda())
filtered(torch.ones(1, 2, 4, 4, device="cuda")).sum().backward()
torch.cuda.set_sync_debug_mode("error")  # what PyTorch's op allocated on the host is no transfer
filtered(torch.ones(1, 2, 4, 4, device="cuda")).sum().backward()
torch.cuda.set_sync_debug_mode("default")
print(json.dumps([eager, whole, broken, compiled, most, x.tolist(), turned.shape,
                  [str(each.device) for each in (view, turned, total)], total.item(), seen]))
""",
        **COMPILED,
    )
    eager, whole, broken, (kernels, memory), most, x, turned, devices, total, across = seen
    assert whole == pytest.approx(eager, rel=1e-5)
    assert broken == pytest.approx(eager, rel=1e-5)
    assert kernels > 2
    assert memory < most
    assert x == [[2.0] * 3, [10.0] * 3, [10.0] * 3, [10.0] * 3]
    assert turned == [3, 2]
    assert devices == ["cuda:0", "cuda:0", "cpu"]
    assert total == 24
    assert across == ["cuda:0", "cuda:1", 12]


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_the_hosts_kernels_lay_out_otherwise_is_laid_out_as_on_the_card(dynamic) -> None:
    strides, apart = run(
        f"""
virtual.enable()
network = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.MaxPool2d(3, 2, 1), torch.nn.Conv2d(64, 64, 3)
).cuda()
def trained(network, call):
    network.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        y = call(torch.linspace(-1, 1, 8 * 3 * 32 * 32, device="cuda").view(8, 3, 32, 32))
    y.float().square().mean().backward()
    return y.stride(), [each.grad.cpu() for each in network.parameters()]
(_, one), (strides, other) = trained(network, network), trained(
    network, torch.compile(network, dynamic={dynamic})
)
apart = [float((a - b).abs().max() / a.abs().max()) for a, b in zip(one, other)]
print(json.dumps([strides, apart]))
""",
        **COMPILED,
    )
    assert strides == [64 * 36, 36, 6, 1]
    assert max(apart) < 0.02


@pytest.mark.long
def test_flex_attention_with_a_learned_bias_is_the_eager_one_in_few_ops() -> None:
    apart, ops = run(
        """
from torch.nn.attention.flex_attention import flex_attention
from torch.autograd.profiler import profile
virtual.enable()
bias = torch.randn(2, device="cuda", requires_grad=True)
inputs = [torch.randn(2, 2, 64, 16, device="cuda").bfloat16() for _ in range(3)]
def gradient(attention):
    score = lambda s, b, h, q, k: s + bias[h] * (k - q)
    total = attention(*inputs, score_mod=score).float().square().sum()
    with profile() as profiled:
        found = torch.autograd.grad(total, bias)[0]
    return found, len(profiled.function_events)
(compiled, ops), (eager, _) = gradient(torch.compile(flex_attention)), gradient(flex_attention)
print(json.dumps([float(((compiled - eager) / eager).abs().max()), ops]))
""",
        **COMPILED,
    )
    assert apart < 0.02
    assert ops < 2 * 2 * 64 * 64 / 10  # vmap runs no op for each score


@pytest.mark.long
def test_the_cuda_graphs_of_a_hollow_gpu_share_a_private_pool() -> None:
    """Results lie there, and copies of inputs that move."""
    pytest.importorskip("triton")
    seen = run(
        """
virtual.enable(1, hollow=True)
def in_pool():
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0))
def two(x):
    y = torch.sin(x)
    torch._dynamo.graph_break()
    return torch.cos(y)
two = torch.compile(two, mode="reduce-overhead")
x = torch.empty(4 << 20, device="cuda")
before = in_pool()
for _ in range(3):
    y = two(x)
    at = y.untyped_storage().data_ptr()
    del y
segments = torch.cuda.memory_snapshot()
there = [s for s in segments if s["address"] <= at < s["address"] + s["total_size"]]
print(json.dumps([before, in_pool(), list(there[0]["segment_pool_id"])]))
""",
        **COMPILED,
    )
    before, after, its_id = seen
    assert before == 0
    assert after == 2 * 16 << 20  # the second graph's result lies where the copy of x did
    assert its_id != [0, 0]
