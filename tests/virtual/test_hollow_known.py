"""Hollow GPUs keep whole numbers that the host put there, as PyTorch's own bookkeeping needs."""

import pytest

from .own_process import run

HOLLOW = """
virtual.enable(gpus=1, hollow=True)
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
"""


def hollow(program, **environment):
    return run(HOLLOW + program, **environment)


def test_whole_numbers_from_the_host_are_read_back():
    assert hollow("""
there = torch.tensor([1, 2, 3]).cuda()
flags = torch.tensor([True, False], device="cuda")
print(json.dumps([
    there.tolist(), there[1].item(), there[1:].cpu().tolist(), there.clone().tolist(),
    there.to(torch.int32).tolist(), int(there[2]), flags.tolist(),
    torch.tensor([[1, 2], [3, 4]]).cuda().t().tolist(),
]))
""") == [[1, 2, 3], 2, [2, 3], [1, 2, 3], [1, 2, 3], 3, [True, False], [[1, 3], [2, 4]]]


def test_parts_and_fills_are_known_and_the_others_are_zeros():
    assert hollow("""
there = torch.zeros(4, dtype=torch.long, device="cuda")
there[1] = 5
there[2:3].copy_(torch.tensor([1 << 40]))
full = torch.full((2,), 7, device="cuda")
print(json.dumps([there.tolist(), full.tolist()]))
""") == [[0, 5, 1 << 40, 0], [7, 7]]


@pytest.mark.parametrize(
    "change",
    [
        "x.add_(1)",
        "x.random_(9)",
        "x.zero_()",
        "torch.add(x, 1, out=x)",
        "x.copy_(x * 2)",
        "x.view(-1)[0:3].mul_(2)",
        "torch._foreach_add_([x], 1)",
        "x.detach().sub_(1)",
        "x.resize_(40)[:3]",
    ],
)
def test_what_is_written_to_otherwise_is_unknown_again(change):
    assert hollow(f"""
x = torch.tensor([1, 2, 3]).cuda()
{change}
print(json.dumps(x.tolist()[:3]))
""") == [0, 0, 0]


def test_fractions_and_large_tensors_are_zeros_and_take_no_memory():
    fractions, large, resident = hollow("""
before = most_resident()
large = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")
large.copy_(torch.ones(1, dtype=torch.uint8))
several = [large.clone() for _ in range(20)]
fractions = torch.tensor([1.5]).cuda().tolist()
print(json.dumps([fractions, large[:2].tolist(), most_resident() - before]))
""")
    assert (fractions, large) == ([0.0], [0, 0])
    assert resident < 1 << 27


def test_each_rank_says_what_this_one_says():
    assert hollow("""
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
def cuda(*numbers):
    return torch.tensor(numbers, device="cuda")
summed, most, product = cuda(3), cuda(3), cuda(3)
dist.all_reduce(summed)
dist.all_reduce(most, dist.ReduceOp.MAX)
dist.all_reduce(product, dist.ReduceOp.PRODUCT)
all_of_them, listed, part = cuda(0, 0), [cuda(0, 0)], cuda(0, 0)
dist.all_gather_into_tensor(all_of_them, cuda(4, 5))
dist.all_gather(listed, cuda(6, 7))
dist.reduce_scatter_tensor(part, cuda(8, 9))
sent, unknown = cuda(1, 1), cuda(1)
dist.broadcast(sent, 0)
dist.all_reduce(unknown.add_(1))
swapped = cuda(0, 0)
dist.all_to_all_single(swapped, cuda(2, 3))
print(json.dumps([x.tolist() for x in (
    summed, most, product, all_of_them, listed[0], part, sent, unknown, swapped)]))
""") == [[3], [3], [3], [4, 5], [6, 7], [8, 9], [1, 1], [0], [2, 3]]


TRAINED = """
dist.init_process_group("{backend}", store=dist.HashStore(), rank=0, world_size=1)
network = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).cuda()
ddp = DistributedDataParallel(network, device_ids=[0], bucket_cap_mb=0.02, {options})
optimizer = torch.optim.AdamW(ddp.parameters())
steps = 0
for step in range(6):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    with ddp.no_sync() if step % 3 == 1 else torch.enable_grad():
        ddp(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    steps += all(each.grad is not None for each in network.parameters())
print(json.dumps(steps))
"""


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(
    "options",
    ["", "find_unused_parameters=True", "static_graph=True", "gradient_as_bucket_view=True"],
)
def test_replicas_train_for_several_steps(backend, options):
    if options == "static_graph=True":
        program = TRAINED.replace("step % 3 == 1", "False")  # not with no_sync in its first steps
    else:
        program = TRAINED
    assert hollow(program.format(backend=backend, options=options)) == 6
