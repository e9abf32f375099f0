"""Networks in pieces: FSDP, DTensor, tensor, pipeline and context parallel, and checkpoints."""

import gc
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from checks import GPU, RANK, RANKS, begin, check, equal, run_all
from losses import EXACT, batches, close, losses_alone, losses_together, network
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, rand
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import mse_loss


def sharded(module, **options):
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(module, **options)


@check
def fsdp2():
    alone = losses_alone(network())
    narrow = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for options, tolerance in (
        ({}, EXACT),
        ({"reshard_after_forward": False}, EXACT),
        ({"mp_policy": narrow}, 1e-2),
        ({"mp_policy": MixedPrecisionPolicy(param_dtype=torch.float16)}, 1e-3),
    ):
        close(losses_together(sharded(network().to(GPU), **options)), alone, tolerance, options)
    offloaded = sharded(network(), offload_policy=CPUOffloadPolicy())
    close(losses_together(offloaded), alone, EXACT, "offloaded")
    equal(next(offloaded.parameters()).device.type, "cpu")


@check
def fsdp2_in_two_dimensions():
    mesh = init_device_mesh("cuda", (RANKS // 2, 2), mesh_dim_names=("replicate", "shard"))
    together = sharded(network().to(GPU), mesh=mesh)
    close(losses_together(together), losses_alone(network()), EXACT, "hybrid")


@check
def fsdp1():
    for options in ({"use_orig_params": True}, {}):
        together = FullyShardedDataParallel(network(), device_id=GPU, **options)
        close(losses_together(together), losses_alone(network()), EXACT, options)


@check
def a_share_of_the_memory():
    whole = nn.Linear(1024, 1024, bias=False)
    gc.collect()
    before = torch.cuda.memory_allocated()
    share = fully_shard(whole.to(GPU))
    equal(torch.cuda.memory_allocated() - before, 4 * 1024 * 1024 // RANKS)
    equal(share.weight.to_local().shape, (1024 // RANKS, 1024))


@check
def tensors_over_a_mesh():
    mesh = init_device_mesh("cuda", (RANKS,))
    whole = torch.arange(8.0 * RANKS).view(2 * RANKS, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    equal(rows.to_local().tolist(), whole[2 * RANK : 2 * RANK + 2].tolist())
    equal(rows.sum().full_tensor().item(), whole.sum().item())
    assert torch.equal(rows.redistribute(placements=[Shard(1)]).full_tensor().cpu(), whole)
    assert torch.equal(rows.redistribute(placements=[Replicate()]).to_local().cpu(), whole)
    assert rand(4, 4, device_mesh=mesh, placements=[Shard(0)]).full_tensor().unique().numel() > 8


@check
def tensor_parallel():
    mesh = init_device_mesh("cuda", (RANKS,))
    alone = network().to(GPU)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    together = parallelize_module(network().to(GPU), mesh, plan)
    batch = batches()[0][0].to(GPU)
    together(batch).square().sum().backward()
    alone(batch).square().sum().backward()
    for name in ("0.weight", "2.weight"):
        found = together.get_parameter(name).grad.full_tensor()
        assert torch.allclose(found, alone.get_parameter(name).grad, atol=1e-5), name


@check
def context_in_parallel():
    mesh = init_device_mesh("cuda", (RANKS,))
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 64 * RANKS, 8).to(GPU) for _ in range(3))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        alone = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        with context_parallel(mesh, buffers=[query, key, value], buffer_seq_dims=[2, 2, 2]):
            part = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    (together,) = context_parallel_unshard(mesh, [part], [2])
    assert torch.allclose(together, alone, atol=1e-5)


@check
def pipelines():
    layers = list(network())
    first = [layers[:3], *([layer] for layer in layers[3 : RANKS + 1])]
    stages = [*first[: RANKS - 1], layers[RANKS + 1 :]] if RANKS > 2 else [layers[:3], layers[3:]]
    batch, target = (part[0].to(GPU) for part in batches())
    alone = mse_loss(network().to(GPU)(batch), target).item()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        stage = PipelineStage(nn.Sequential(*stages[RANK]).to(GPU), RANK, RANKS, GPU)
        pipeline, losses = schedule(stage, n_microbatches=4, loss_fn=mse_loss), []
        given = {"target": target, "losses": losses} if RANK == RANKS - 1 else {}
        pipeline.step(*([batch] if RANK == 0 else []), **given)
        if losses:
            close([torch.stack(losses).mean().item()], [alone], EXACT, schedule.__name__)


@check
def saved_and_loaded():
    folder = os.environ["REPORTS"]
    saved = sharded(network().to(GPU))
    optimizer = torch.optim.AdamW(saved.parameters(), lr=0.1)
    losses_together(saved, optimizer)
    state = dict(zip(("network", "optimizer"), get_state_dict(saved, optimizer), strict=True))
    checkpoints.save(state, checkpoint_id=f"{folder}/now")
    checkpoints.async_save(state, checkpoint_id=f"{folder}/later").result()
    for name in ("now", "later"):
        loaded = sharded(network().to(GPU))
        other = torch.optim.AdamW(loaded.parameters(), lr=0.1)
        fresh = dict(zip(("network", "optimizer"), get_state_dict(loaded, other), strict=True))
        checkpoints.load(fresh, checkpoint_id=f"{folder}/{name}")
        set_state_dict(
            loaded, other, model_state_dict=fresh["network"], optim_state_dict=fresh["optimizer"]
        )
        for one, two in zip(saved.parameters(), loaded.parameters(), strict=True):
            assert torch.equal(one.full_tensor(), two.full_tensor())
    assert losses_together(saved, optimizer) == losses_together(loaded, other)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found = get_model_state_dict(saved, options=whole)
    equal(sorted(found), sorted(network().state_dict()) if RANK == 0 else [])


begin("cpu:gloo,cuda:nccl")
run_all()
dist.destroy_process_group()
