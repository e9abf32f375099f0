"""Groups of processes and how they begin, end and fail."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from checks import GPU, RANK, RANKS, begin, check, equal, error_of, on_gpu, run_all
from torch.distributed.device_mesh import init_device_mesh


def in_all(group=None):
    mine = on_gpu(1)
    dist.all_reduce(mine, group=group)
    return mine.item()


@check
def a_gather_is_the_first_that_is_asked():
    begin()
    rows = [on_gpu(0) for _ in range(RANKS)] if RANK == 0 else None
    dist.gather(on_gpu(RANK), rows)
    equal([row.item() for row in rows or []], list(range(RANKS)) if RANK == 0 else [])


@check
def groups_of_some():
    begin()
    some = dist.new_group([0, 1])
    if RANK < 2:
        equal(in_all(some), 2)
    alone, _ = dist.new_subgroups(group_size=1)
    equal(in_all(alone), 1)
    mesh = init_device_mesh("cuda", (RANKS // 2, 2), mesh_dim_names=("outer", "inner"))
    equal(in_all(mesh["inner"].get_group()), 2)
    equal(in_all(mesh["outer"].get_group()), RANKS // 2)
    dist.destroy_process_group(alone)
    equal(in_all(), RANKS)


@check
def a_name_that_comes_again_with_other_members():
    begin()
    dist.new_group([0])
    begin()
    equal(in_all(dist.new_group(list(range(RANKS)))), RANKS)


@check
def begun_at_once_on_a_device_and_split():
    begin(None, device_id=GPU)
    equal(dist.get_backend(), "nccl")
    part = dist.split_group(split_ranks=[[rank] for rank in range(RANKS)])
    equal(in_all(part), 1)
    halves = dist.new_group([RANK], use_local_synchronization=True)
    equal(in_all(halves), 1)


@check
def a_part_with_a_timeout_of_its_own():
    begin(None, device_id=GPU)
    everyone = [list(range(RANKS))]
    part = dist.split_group(split_ranks=everyone, timeout=timedelta(seconds=1))
    equal([in_all(part), in_all(dist.split_group(part, everyone))], [RANKS, RANKS])
    if RANK == 0:
        assert "1000ms" in error_of(lambda: in_all(part))[1]
        time.sleep(0.3)
    equal(in_all(), RANKS)  # the others waited for more than a second


@check
def a_backend_for_each_device():
    begin("cuda:nccl,cpu:gloo")
    on_host = torch.ones(1)
    dist.all_reduce(on_host)
    equal([in_all(), on_host.item()], [RANKS, RANKS])


@check
def gloo_takes_cuda_tensors():
    begin()
    group = dist.new_group(backend="gloo")
    equal(in_all(group), RANKS)
    on_host, flags = torch.ones(1), on_gpu(6, dtype=torch.int32)
    dist.all_reduce(on_host, group=group)
    dist.all_reduce(flags, dist.ReduceOp.BAND, group=group)
    equal([on_host.item(), flags.item()], [RANKS, 6])
    dist.monitored_barrier(group)


@check
def nccls_errors():
    begin()
    equal(in_all(), RANKS)
    cases = {
        "No backend type associated with device type cpu": lambda: dist.all_reduce(torch.ones(1)),
        "Cannot use ReduceOp.BAND with NCCL": lambda: dist.all_reduce(
            on_gpu(1, dtype=torch.int32), dist.ReduceOp.BAND
        ),
        "Cannot use ReduceOp.AVG with boolean inputs": lambda: dist.all_reduce(
            on_gpu(1, dtype=torch.bool), dist.ReduceOp.AVG
        ),
        "Input tensor data type is not supported for NCCL process group: Short": lambda: (
            dist.all_reduce(on_gpu(1, dtype=torch.int16))
        ),
        "Tensors must be contiguous": lambda: dist.all_reduce(torch.ones(4, device=GPU)[::2]),
        "output tensor size must be equal to world_size times input tensor size": lambda: (
            dist.all_gather_into_tensor(on_gpu(1), on_gpu(1))
        ),
        "ProcessGroupNCCL does not support recvAnysource": lambda: dist.recv(on_gpu(1)),
    }
    for text, cause in cases.items():
        assert text in error_of(cause)[1], (text, error_of(cause))


@check
def what_only_real_gpus_have():
    begin()
    kind, text = error_of(lambda: symmetric_memory.rendezvous(on_gpu(1), dist.group.WORLD))
    equal(kind, "NotImplementedError")
    assert "symmetric memory" in text, text


@check
def two_ranks_on_one_gpu():
    begin()
    kind, text = error_of(lambda: dist.all_reduce(torch.ones(1, device="cuda:0")))
    equal(kind, "DistBackendError")
    assert "Duplicate GPU detected : rank" in text, text


@check
def a_rank_that_does_not_come():
    begin()
    group = dist.new_group(timeout=timedelta(seconds=1))
    if RANK == 0:
        kind, text = error_of(lambda: dist.all_reduce(on_gpu(1), group=group))
        equal(kind, "DistBackendError")
        assert "1000ms" in text, text
    in_all()


@check
def asked_after_the_end():
    begin()
    work = dist.all_reduce(on_gpu(1), async_op=True)
    dist.destroy_process_group()
    assert work.is_completed()
    equal(error_of(lambda: dist.all_reduce(on_gpu(1)))[0], "ValueError")


run_all()
