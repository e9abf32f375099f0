"""What processes exchange: every collective, dtype and form that NCCL has."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from checks import GPU, RANK, RANKS, begin, check, equal, on_gpu, run_all

SUM_OF_RANKS = RANKS * (RANKS - 1) // 2
NEXT, PREVIOUS = (RANK + 1) % RANKS, (RANK - 1) % RANKS
FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


@check
def nccl_is_there():
    assert dist.is_nccl_available()
    equal(dist.get_backend(), "nccl")
    assert isinstance(dist.group.WORLD._get_backend(GPU), dist.ProcessGroupNCCL)
    assert torch.cuda.nccl.version() >= (2, 20)


@check
def reductions_of_every_dtype():
    given = torch.tensor([[rank + 1, 2 * rank] for rank in range(RANKS)], dtype=torch.float64)
    expected = {
        dist.ReduceOp.SUM: given.sum(0),
        dist.ReduceOp.AVG: given.mean(0),
        dist.ReduceOp.PRODUCT: given.prod(0),
        dist.ReduceOp.MIN: given.amin(0),
        dist.ReduceOp.MAX: given.amax(0),
    }
    for dtype in FLOATING + INTEGERS:
        for operation, result in expected.items():
            mine = given[RANK].to(GPU, dtype)
            dist.all_reduce(mine, operation)
            wanted = result.to(dtype).double()  # NCCL's averages of integers are cut off
            assert torch.allclose(mine.cpu().double(), wanted, rtol=1e-2), (dtype, operation, mine)


@check
def bools_are_ored():
    mine = torch.tensor([RANK == 0, False, True], device=GPU)
    dist.all_reduce(mine)
    equal(mine.tolist(), [True, False, True])
    equal(mine.view(torch.uint8).tolist(), [1, 0, 1])


@check
def complex_numbers_are_summed():
    mine = on_gpu(RANK, dtype=torch.complex64) * (1 + 2j)
    dist.all_reduce(mine)
    equal(mine.item(), SUM_OF_RANKS * (1 + 2j))


@check
def sums_scaled_beforehand():
    for factor in (0.5, torch.tensor(0.5, device=GPU)):
        mine = on_gpu(RANK, 2)
        dist.all_reduce(mine, dist._make_nccl_premul_sum(factor))
        equal(mine.tolist(), [SUM_OF_RANKS / 2, RANKS])


@check
def averages_that_would_overflow_as_sums():
    mine = on_gpu(60000, dtype=torch.float16)
    dist.all_reduce(mine, dist.ReduceOp.AVG)
    assert abs(mine.item() - 60000) <= 32


@check
def tensors_in_channels_last_layout():
    mine = torch.arange(24.0, device=GPU).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    dist.all_reduce(mine)
    assert torch.equal(mine.cpu(), RANKS * torch.arange(24.0).view(1, 2, 3, 4))


@check
def gathering_to_all():
    row = on_gpu(RANK, 10 + RANK)
    expected = [[rank, 10 + rank] for rank in range(RANKS)]
    rows = [torch.empty_like(row) for _ in range(RANKS)]
    dist.all_gather(rows, row)
    equal([row.tolist() for row in rows], expected)
    whole = torch.empty(RANKS, 2, device=GPU)
    dist.all_gather_into_tensor(whole, row)
    equal(whole.tolist(), expected)
    uneven = [torch.empty(rank + 1, device=GPU) for rank in range(RANKS)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK), device=GPU))
    equal([part.tolist() for part in uneven], [[rank] * (rank + 1) for rank in range(RANKS)])


@check
def gathering_what_cannot_be_reduced():
    for dtype in (torch.float8_e4m3fn, torch.complex64, torch.bool):
        mine = torch.tensor([RANK], device=GPU).to(dtype)
        whole = torch.empty(RANKS, dtype=dtype, device=GPU)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole.cpu().to(torch.int), torch.arange(RANKS).to(dtype).to(torch.int))


@check
def scattering_sums():
    whole = torch.arange(2.0 * RANKS, device=GPU)
    mine, expected = torch.empty(2, device=GPU), [2.0 * RANK * RANKS, (2.0 * RANK + 1) * RANKS]
    dist.reduce_scatter_tensor(mine, whole)
    equal(mine.tolist(), expected)
    equal(whole.tolist(), list(range(2 * RANKS)))  # untouched
    dist.reduce_scatter(mine, list(whole.chunk(RANKS)), dist.ReduceOp.AVG)
    equal(mine.tolist(), [2.0 * RANK, 2.0 * RANK + 1])


@check
def one_root():
    mine = on_gpu(RANK)
    dist.broadcast(mine, src=RANKS - 1)
    equal(mine.item(), RANKS - 1)
    mine = on_gpu(RANK)
    dist.reduce(mine, dst=0)
    equal(mine.item(), SUM_OF_RANKS if RANK == 0 else RANK)
    rows = [torch.empty(1, device=GPU) for _ in range(RANKS)] if RANK == 0 else None
    dist.gather(on_gpu(RANK), rows)
    assert RANK or [row.item() for row in rows] == list(range(RANKS))
    dist.scatter(mine, [on_gpu(10 + rank) for rank in range(RANKS)] if RANK == 0 else None)
    equal(mine.item(), 10 + RANK)


@check
def from_each_to_each():
    mine = torch.empty(RANKS, device=GPU)
    dist.all_to_all_single(mine, torch.arange(float(RANKS), device=GPU) + 10 * RANK)
    equal(mine.tolist(), [10.0 * rank + RANK for rank in range(RANKS)])
    received = [rank + 1 for rank in range(RANKS)]
    rows = torch.empty(sum(received), 3, device=GPU)
    sent = torch.full((RANKS * (RANK + 1), 3), float(RANK), device=GPU)
    dist.all_to_all_single(rows, sent, received, [RANK + 1] * RANKS)
    equal(rows[:, 0].tolist(), [rank for rank in range(RANKS) for _ in range(rank + 1)])
    parts = [torch.empty(length, 3, device=GPU) for length in received]
    dist.all_to_all(parts, list(sent.chunk(RANKS)))
    equal([part[0, 0].item() for part in parts], list(range(RANKS)))


@check
def between_two():
    sent, received = on_gpu(RANK, 1), torch.zeros(2, device=GPU)
    if RANK % 2 == 0:
        dist.send(sent, NEXT)
        dist.recv(received, PREVIOUS)
    else:
        dist.recv(received, PREVIOUS)
        dist.send(sent, NEXT)
    equal(received.tolist(), [PREVIOUS, 1])
    received.zero_()
    works = [dist.isend(sent, NEXT), dist.irecv(received, PREVIOUS)]
    while not all(work.is_completed() for work in works):
        pass
    equal(received.tolist(), [PREVIOUS, 1])
    received.zero_()
    pair = [dist.P2POp(dist.irecv, received, PREVIOUS), dist.P2POp(dist.isend, sent, NEXT)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    equal(received.tolist(), [PREVIOUS, 1])


@check
def asynchronous_forms():
    mine = on_gpu(1)
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    assert work.is_completed()
    equal(mine.item(), RANKS)
    future = dist.all_reduce(mine, async_op=True).get_future()
    equal(future.then(lambda done: done.value()[0] + 1).wait().item(), RANKS**2 + 1)
    dist.all_reduce(mine, async_op=True)
    torch.cuda.synchronize()  # waits for what is still on its way
    equal(mine.item(), RANKS**3)


@check
def asked_in_another_order_on_each_rank():
    first, second = (dist.new_group() for _ in range(2))
    one, two = on_gpu(1), on_gpu(2)
    asked = [(first, one), (second, two)]
    if RANK % 2:
        asked.reverse()
    works = [dist.all_reduce(tensor, group=group, async_op=True) for group, tensor in asked]
    for work in works:
        work.wait()
    equal([one.item(), two.item()], [RANKS, 2 * RANKS])


@check
def several_as_one():
    mine = [on_gpu(value) for value in range(3)]
    with dist._coalescing_manager(device=GPU):
        for tensor in mine:
            dist.all_reduce(tensor)
    equal([tensor.item() for tensor in mine], [0, RANKS, 2 * RANKS])
    wholes = [torch.empty(RANKS, device=GPU) for _ in range(2)]
    with dist._coalescing_manager(device=GPU, async_ops=True) as together:
        for value, whole in enumerate(wholes):
            dist.all_gather_into_tensor(whole, on_gpu(value))
    together.wait()
    equal([whole.tolist() for whole in wholes], [[0] * RANKS, [1] * RANKS])


@check
def objects():
    everyone = [None] * RANKS
    dist.all_gather_object(everyone, {"rank": RANK})
    equal(everyone, [{"rank": rank} for rank in range(RANKS)])
    told = [RANK, "said by"]
    dist.broadcast_object_list(told, src=0)
    equal(told, [0, "said by"])
    handed = [None]
    dist.scatter_object_list(handed, [str(rank) for rank in range(RANKS)] if RANK == 0 else None)
    equal(handed, [str(RANK)])


@check
def functional_forms_also_compiled():
    world = dist.group.WORLD
    equal((functional.all_reduce(on_gpu(1), "sum", world) + 0).item(), RANKS)
    equal((functional.all_gather_tensor(on_gpu(RANK), 0, world) + 0).tolist(), list(range(RANKS)))
    ones = torch.ones(2 * RANKS, device=GPU)
    equal((functional.reduce_scatter_tensor(ones, "avg", 0, world) + 0).tolist(), [1, 1])

    @torch.compile
    def doubled(tensor):
        return functional.all_reduce(2 * tensor, "sum", world) + 1

    equal(doubled(on_gpu(1)).item(), 2 * RANKS + 1)


@check
def barriers_and_empty_tensors():
    dist.barrier()
    dist.barrier(device_ids=[RANK])
    dist.all_reduce(torch.empty(0, device=GPU))
    dist.all_gather_into_tensor(torch.empty(0, device=GPU), torch.empty(0, device=GPU))


@check
def memory_is_counted_as_for_one_process():
    mine = torch.ones(1 << 20, device=GPU)
    before = torch.cuda.memory_allocated()
    dist.all_reduce(mine)
    dist.all_gather([torch.empty_like(mine) for _ in range(RANKS)], mine)
    equal(torch.cuda.memory_allocated(), before)
    others = [torch.cuda.memory_allocated(gpu) for gpu in range(RANKS) if gpu != RANK]
    equal(others, [0] * (RANKS - 1))


begin()
run_all()
dist.destroy_process_group()
