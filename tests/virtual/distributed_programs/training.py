"""DistributedDataParallel in all its forms trains as one process does."""

import torch
import torch.distributed as dist
from checks import GPU, RANK, RANKS, begin, check, equal, error_of, run_all
from losses import EXACT, batches, close, losses_alone, losses_together, network
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def parallel(module, **options):
    return DistributedDataParallel(module.to(GPU), device_ids=[RANK], **options)


@check
def options_do_not_change_the_losses():
    alone = losses_alone(network())
    for options in (
        {},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 0.001},
    ):
        close(losses_together(parallel(network(), **options)), alone, EXACT, options)


@check
def gradients_gathered_over_two_batches():
    together, alone = parallel(network()), network().to(GPU)
    batch, target = (part[0].to(GPU) for part in batches())
    mine, wanted = batch.chunk(RANKS)[RANK], target.chunk(RANKS)[RANK]
    with together.no_sync():
        mse_loss(together(mine[:4]), wanted[:4]).backward()
    mse_loss(together(mine[4:]), wanted[4:]).backward()
    (2 * mse_loss(alone(batch), target)).backward()
    for one, other in zip(together.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=EXACT)


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, batch):
        return self.used(batch)


@check
def parameters_that_take_no_part():
    batch = torch.ones(2, 8, device=GPU)
    lenient, strict = parallel(HalfUsed(), find_unused_parameters=True), parallel(HalfUsed())
    for _ in range(2):
        lenient(batch).sum().backward()
    assert lenient.module.used.weight.grad is not None
    assert lenient.module.unused.weight.grad is None
    strict(batch).sum().backward()
    assert "Expected to have finished reduction" in error_of(lambda: strict(batch))[1]


@check
def batch_norm_over_all_ranks():
    alone = losses_alone(network(nn.BatchNorm1d(32)))
    together = nn.SyncBatchNorm.convert_sync_batchnorm(network(nn.BatchNorm1d(32)))
    close(losses_together(parallel(together)), alone, EXACT, "SyncBatchNorm")


@check
def buffers_come_from_rank_0():
    module = nn.BatchNorm1d(8)
    module.running_mean.fill_(RANK)
    together = parallel(module)
    together(torch.zeros(2, 8, device=GPU))
    equal(module.running_mean.max().item(), 0)


@check
def communication_hooks():
    alone = losses_alone(network())
    rank_2 = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}
    for hook, state, tolerance in (
        (default_hooks.allreduce_hook, None, EXACT),
        (default_hooks.fp16_compress_hook, None, 1e-4),
        (default_hooks.bf16_compress_hook, None, 1e-3),
        (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, **rank_2), 1e-2),
    ):
        together = parallel(network())
        together.register_comm_hook(state, hook)
        close(losses_together(together), alone, tolerance, hook.__name__)


@check
def ranks_with_fewer_batches():
    together = parallel(network())
    with together.join():
        for _ in range(2 + RANK):
            together(torch.ones(2, 8, device=GPU)).sum().backward()


@check
def optimizer_state_in_shares():
    together = parallel(network())
    optimizer = ZeroRedundancyOptimizer(
        together.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9
    )
    close(losses_together(together, optimizer), losses_alone(network()), EXACT, "ZeRO")


@check
def compiled_and_in_mixed_precision():
    module = torch.compile(parallel(network()))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        close(losses_together(module), losses_alone(network()), 3e-2, "bfloat16")


begin()
run_all()
dist.destroy_process_group()
