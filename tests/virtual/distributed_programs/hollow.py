"""Hollow GPUs in several processes: shapes and bytes are right, and nothing is exchanged."""

import torch
import torch.distributed as dist
from checks import GPU, RANK, RANKS, begin, check, equal, error_of, on_gpu, run_all
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from anydevice import virtual

WIDTH = 4096
WEIGHTS = 4 * WIDTH * WIDTH


def peak_of_a_step(network: nn.Module) -> int:
    torch.cuda.reset_peak_memory_stats()
    network(torch.ones(2, WIDTH, device=GPU)).sum().backward()
    return torch.cuda.max_memory_allocated()


@check
def collectives_return_at_once():
    dist.all_reduce(on_gpu(1))
    dist.all_gather([on_gpu(0) for _ in range(RANKS)], on_gpu(RANK))
    dist.barrier()
    if RANK == 0:
        dist.send(on_gpu(1), 1)
    elif RANK == 1:
        dist.recv(on_gpu(0), 0)


@check
def replicas_hold_weights_gradients_and_buckets():
    network = nn.Linear(WIDTH, WIDTH, bias=False).to(GPU)
    assert peak_of_a_step(DistributedDataParallel(network, device_ids=[RANK])) >= 3 * WEIGHTS


def trains(backend: str, **options: object) -> None:
    group = dist.new_group(backend=backend)
    network = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)]).to(GPU)
    replica = DistributedDataParallel(
        network, device_ids=[RANK], process_group=group, bucket_cap_mb=0.02, **options
    )
    optimizer = torch.optim.AdamW(replica.parameters())
    for _ in range(4):
        replica(torch.ones(4, 64, device=GPU)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@check
def replicas_train_for_several_steps():
    for backend in ("nccl", "gloo"):
        trains(backend)
        trains(backend, static_graph=True)
        trains(backend, find_unused_parameters=True)


@check
def each_rank_says_what_this_one_says():
    def numbers(*given: int) -> torch.Tensor:
        return torch.tensor(given, device=GPU)

    summed, gathered = numbers(RANK, 2), numbers(*[9] * RANKS)
    dist.all_reduce(summed)
    dist.all_gather_into_tensor(gathered, numbers(RANK))
    part = numbers(0)
    dist.reduce_scatter_tensor(part, torch.arange(RANKS).to(GPU))
    swapped = numbers(*[9] * RANKS)
    dist.all_to_all_single(swapped, torch.arange(RANKS).to(GPU))
    equal(summed.tolist(), [RANK * RANKS, 2 * RANKS])
    equal(gathered.tolist(), [RANK] * RANKS)
    equal(part.tolist(), [RANK * RANKS])
    equal(swapped.tolist(), [RANK] * RANKS)


@check
def shards_hold_less():
    before = torch.cuda.memory_allocated()
    network = fully_shard(nn.Linear(WIDTH, WIDTH, bias=False).to(GPU))
    equal(torch.cuda.memory_allocated() - before, WEIGHTS // RANKS)
    assert peak_of_a_step(network) > WEIGHTS


@check
def objects_need_values():
    kind, text = error_of(lambda: dist.all_gather_object([None] * RANKS, RANK))
    equal(kind, "NotImplementedError")
    assert "new_group" in text
    everyone = [None] * RANKS
    dist.all_gather_object(everyone, RANK, group=dist.new_group(backend="gloo"))
    equal(everyone, list(range(RANKS)))


virtual.enable(RANKS, hollow=True)
begin()
run_all()
dist.destroy_process_group()
