"""Several GPUs in one process: copies between them, DataParallel and what it is made of."""

from .own_process import run

START = """
import torch
from torch import nn
from torch.cuda import comm
from anydevice import virtual
virtual.enable(gpus=3)
torch.manual_seed(0)
def says(work):
    try:
        return str(work())
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]
def cuda(*shape, device=0):
    return torch.ones(shape, device=device)
"""


def several(program):
    return run(START + program)


def test_mismatches_name_both_gpus():
    found = several("""
print(json.dumps([
    says(lambda: cuda(2) + cuda(2, device=1)),
    says(lambda: nn.Linear(2, 2).to(1)(cuda(1, 2))),
    says(lambda: torch.cat([cuda(2), cuda(2, device=1)])),
    says(lambda: cuda(3)[torch.tensor([0], device="cuda:1")]),
]))
""")
    assert found == [
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
        "and cuda:1!",
        "Expected all tensors to be on the same device, but got mat1 is on cuda:0, different from "
        "other tensors on cuda:1 (when checking argument in method wrapper_CUDA_addmm)",
        "Expected all tensors to be on the same device, but got tensors is on cuda:1, different "
        "from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_cat)",
        "indices should be either on cpu or on the same device as the indexed tensor (cuda:0)",
    ]


def test_the_current_device_is_the_threads_own():
    found = several("""
import threading
torch.cuda.set_device(2)
seen = []
def work():
    seen.append(torch.cuda.current_device())
    torch.cuda.set_device(1)
    seen.append(torch.ones(1, device="cuda").get_device())
thread = threading.Thread(target=work); thread.start(); thread.join()
with torch.cuda.device(1):
    seen.append(torch.cuda.current_device())
with torch.cuda.device_of(cuda(1, device=0)):
    seen.append(torch.ones(1, device="cuda").get_device())
seen.append(torch.cuda.current_device())
seen.append(torch.ones(1).cuda(1).get_device())
seen.append(torch.ones(1, device=torch.device(0)).get_device())
seen.append(says(lambda: torch.cuda.set_device(5)))
print(json.dumps(seen))
""")
    assert found == [0, 1, 1, 0, 2, 1, 0, "CUDA error: invalid device ordinal"]


def test_a_peer_copy_is_reported_with_both_gpus_and_no_wait():
    found = several("""
from anydevice.virtual.events import listening
x, heard = cuda(4), []
with listening(heard.append):
    x.to("cuda:1")
seen = [e for e in heard if e.kind in ("transfer", "synchronise")]
print(json.dumps([[e.kind, e.source, e.destination, e.bytes] for e in seen]))
""")
    assert found == [["transfer", 0, 1, 16]]


def test_broadcast_scatter_and_gather():
    found = several("""
x = torch.arange(6.0, device="cuda:0")
copies = comm.broadcast(x, [0, 1, 2])
parts = comm.scatter(torch.arange(7.0), [0, 1, 2])
sized = comm.scatter(x, [1, 2], chunk_sizes=[2, 4])
whole = comm.gather(parts, destination=1)
host = comm.gather(parts, destination="cpu")
coalesced = comm.broadcast_coalesced([x, x[:2] * 2, x.long()], [0, 1])
added = comm.reduce_add([x, x.to(1)])
print(json.dumps([
    copies[0] is x, [str(c.device) for c in copies], copies[2].tolist() == x.tolist(),
    [p.tolist() for p in parts], [p.tolist() for p in sized], [str(p.device) for p in sized],
    whole.get_device(), whole.tolist(), host.is_cpu,
    coalesced[0][0] is x, [t.tolist() for t in coalesced[1]],
    [t.get_device() for t in coalesced[1]],
    coalesced[1][0]._version, added.tolist(),
]))
""")
    assert found == [
        True,
        ["cuda:0", "cuda:1", "cuda:2"],
        True,
        [[0, 1, 2], [3, 4, 5], [6]],
        [[0, 1], [2, 3, 4, 5]],
        ["cuda:1", "cuda:2"],
        1,
        [0, 1, 2, 3, 4, 5, 6],
        True,
        True,
        [[0, 1, 2, 3, 4, 5], [0, 2], [0, 1, 2, 3, 4, 5]],
        [1, 1, 1],
        0,
        [0, 2, 4, 6, 8, 10],
    ]


def test_buffers_are_copied_together():
    found = several("""
from anydevice.virtual.events import listening
tensors, heard = [cuda(8) for _ in range(10)], []
with listening(heard.append):
    torch._C._broadcast_coalesced(tensors, [0, 1], 1 << 20)
    few = [e.bytes for e in heard if e.kind == "transfer" and e.destination == 1]
    heard.clear()
    torch._C._broadcast_coalesced(tensors, [0, 1], 64)
print(json.dumps([few, len([e for e in heard if e.kind == "transfer" and e.destination == 1])]))
""")
    assert found == [[320], 5]


def test_wrong_use_of_comm_reads_as_on_the_card():
    found = several("""
c = torch._C
print(json.dumps([
    says(lambda: comm.broadcast(cuda(1), [1, 2])),
    says(lambda: comm.broadcast_coalesced([cuda(1, device=1)], [0, 1])),
    says(lambda: comm.scatter(cuda(5), [0, 1], chunk_sizes=[2, 2])),
    says(lambda: comm.gather([torch.ones(1)], destination=0)),
    says(lambda: comm.gather([cuda(1), cuda(1, 1)], destination=0)),
    says(lambda: comm.gather([cuda(2, 2), cuda(2, 3)], destination=0)),
]))
""")
    assert found == [
        "device of broadcasted tensor must appear as the first on devices list",
        "all tensors must be on devices[0]",
        "given chunk sizes don't sum up to the tensor's size (sum(chunk_sizes) == 4, but expected "
        "5)",
        "Expected all input tensors to be CUDA tensors, but tensor at index 0 has device 'cpu'",
        "Expected all input tensors to have the same number of dimensions, but tensor at index 1 "
        "has 2 dimensions, (expected 1)",
        "Input tensor at index 1 has invalid shape [2, 3], but expected [2, 2]",
    ]


DATA_PARALLEL = """
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
    def forward(self, x, scale=1.0):
        y = self.linear(x) * scale
        return {"y": y, "pair": (self.norm(y), x.get_device() * torch.ones(len(x), 1).to(x))}
"""


def test_data_parallel_trains_as_one_gpu_does():
    found = several(
        DATA_PARALLEL
        + """
network = Network().cuda()
x = torch.randn(6, 4)
network.norm.eval()
plain = network(x.cuda())["y"].square().sum()
plain.backward()
expected = [p.grad.clone() for p in network.linear.parameters()]
network.zero_grad()
parallel = nn.DataParallel(network)
result = parallel(x)
result["y"].square().sum().backward()
got = [p.grad for p in network.linear.parameters()]
print(json.dumps([
    all(torch.allclose(a, b) for a, b in zip(expected, got)),
    result["pair"][1].flatten().tolist(), str(result["y"].device), list(parallel.state_dict())[0],
]))
"""
    )
    assert found == [True, [0, 0, 1, 1, 2, 2], "cuda:0", "module.linear.weight"]


def test_data_parallel_of_some_gpus_and_its_errors():
    found = several(
        DATA_PARALLEL
        + """
x = torch.randn(4, 4)
some = nn.DataParallel(Network().to("cuda:1"), device_ids=[1, 2], output_device=2)
devices = some(x)["pair"][1].flatten().tolist()
elsewhere = nn.DataParallel(Network().cpu())
print(json.dumps([devices, str(some(x, scale=2.0)["y"].device), says(lambda: elsewhere(x))]))
"""
    )
    text = (
        "module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found "
        "one of them on device: cpu"
    )
    assert found == [[1, 1, 2, 2], "cuda:2", text]


def test_replicas_share_nothing_and_buffers_of_the_first_are_the_modules():
    found = several("""
norm = nn.BatchNorm1d(4).cuda()
parallel = nn.DataParallel(norm)
parallel(torch.randn(6, 4) + 3)
tracked = int(norm.num_batches_tracked)
replicas = nn.parallel.replicate(norm, [0, 1])
outputs = nn.parallel.parallel_apply(replicas, [(cuda(2, 4),), (cuda(2, 4, device=1),)])
print(json.dumps([
    bool((norm.running_mean != 0).all()), tracked,
    [str(r.running_mean.device) for r in replicas], [str(o.device) for o in outputs],
]))
""")
    assert found == [True, 1, ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1"]]


def test_an_error_in_a_replica_names_it():
    found = several("""
class Wrong(nn.Linear):
    def forward(self, x):
        if x.get_device() == 1:
            raise ValueError("not here")
        return super().forward(x)
parallel = nn.DataParallel(Wrong(1, 1).cuda())
try:
    parallel(torch.ones(3, 1))
except ValueError as error:
    print(json.dumps(str(error)))
""")
    assert "Caught ValueError in replica 1 on device 1." in found


def test_a_model_over_two_gpus_by_hand():
    found = several("""
class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 5).to(0), nn.Linear(5, 1).to(1)
    def forward(self, x):
        return self.second(self.first(x.to(0)).relu().to(1))
halves = Halves()
before = [p.detach().clone() for p in halves.parameters()]
optimizer = torch.optim.Adam(halves.parameters())
loss = halves(torch.randn(4, 3)).square().mean()
loss.backward()
optimizer.step()
print(json.dumps([str(loss.device), [str(p.grad.device) for p in halves.parameters()],
      all(bool((a != b).any()) for a, b in zip(before, halves.parameters()))]))
""")
    assert found == ["cuda:1", ["cuda:0", "cuda:0", "cuda:1", "cuda:1"], True]


def test_nccl_without_processes_sums_and_copies():
    found = several("""
from torch.cuda import nccl
inputs = [cuda(4, device=i) * (i + 1) for i in range(3)]
gathered = [torch.empty(12, device=i) for i in range(3)]
nccl.all_gather(inputs, gathered)
parts = [torch.empty(2, device=i) for i in range(2)]
nccl.reduce_scatter(inputs[:2], parts)
nccl.all_reduce(inputs)
print(json.dumps([gathered[2].tolist()[3:9], [p.tolist() for p in parts],
      [t.tolist() for t in inputs], says(lambda: nccl.unique_id())]))
""")
    assert found[:3] == [[1, 2, 2, 2, 2, 3], [[3, 3], [3, 3]], [[6] * 4] * 3]
    assert "use torch.distributed" in found[3]


def test_random_states_are_each_gpus_own():
    found = several("""
torch.cuda.manual_seed_all(5)
states = torch.cuda.get_rng_state_all()
def draw():
    return [torch.rand(2, device=i).tolist() for i in range(3)]
first = draw()
torch.cuda.set_rng_state_all(states)
again = draw()
with torch.random.fork_rng(devices=[0, 1, 2]):
    draw()
after_fork = draw()
torch.cuda.set_rng_state_all(states)
draw()
torch.cuda.manual_seed(9)
seeds = [torch.cuda.default_generators[i].initial_seed() for i in range(3)]
print(json.dumps([first == again, first[0] == first[1], after_fork == draw(), seeds,
      torch.cuda.initial_seed(), len(states)]))
""")
    assert found == [True, True, False, [9, 5, 5], 9, 3]
