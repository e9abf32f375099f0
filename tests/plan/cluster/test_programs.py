"""Programs that torchrun or mp.spawn would start are planned as one rank of many."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.plan.answer import Plan
from anydevice.plan.cluster.answer import ClusterPlan, ClusterVerdict
from anydevice.plan.cluster.command import Launched
from anydevice.plan.cluster.page import report_page
from anydevice.plan.hollow.program import Program
from anydevice.plan.planning import plan

BEGIN = """
import os, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
network = nn.Sequential(*(nn.Linear(256, 256, device="cuda") for _ in range(4)))
data = torch.ones(8, 256, device="cuda")
"""
TRAIN = """
optimizer = torch.optim.AdamW(network.parameters())
for _ in range(5):
    network(data).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WRAPS = {
    "ddp": """
from torch.nn.parallel import DistributedDataParallel
network = DistributedDataParallel(network, device_ids=[torch.cuda.current_device()])
""",
    "fsdp1": """
from torch.distributed.fsdp import FullyShardedDataParallel
network = FullyShardedDataParallel(network, device_id=torch.cuda.current_device())
""",
    "fsdp2": """
from torch.distributed.fsdp import fully_shard
for layer in network:
    fully_shard(layer)
fully_shard(network)
""",
    "hsdp": """
from torch.distributed.fsdp import fully_shard
mesh = dist.init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))
for layer in network:
    fully_shard(layer, mesh=mesh)
fully_shard(network, mesh=mesh)
""",
    "tp": """
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)
mesh = dist.init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
ways = {str(n): (RowwiseParallel if n % 2 else ColwiseParallel)() for n in range(4)}
parallelize_module(network, mesh, ways)
""",
}
WEIGHTS = 4 * (256 * 256 + 256) * 4


def planned(path: Path, text: str, nodes: int = 2, gpus: int = 4) -> ClusterVerdict:
    (path / "train.py").write_text(text)
    answer = plan(Launched((str(path / "train.py"),), nodes, gpus, "torchrun"), "h100")
    assert isinstance(answer, ClusterPlan)
    return answer["h100"]


def counts(verdict: ClusterVerdict) -> dict[tuple[str, int], int]:
    assert verdict.time
    return {(each.name, each.ranks): each.count for each in verdict.time.collectives}


@pytest.mark.parametrize(
    ("way", "replicas", "share", "collectives"),
    [
        ("ddp", 8, 1, {("all_reduce", 8): 1}),
        ("fsdp1", 8, 8, {("all_gather", 8): 1, ("reduce_scatter", 8): 1}),
        ("fsdp2", 8, 8, {("all_gather", 8): 8, ("reduce_scatter", 8): 4}),
        ("hsdp", 8, 4, {("all_gather", 4): 8, ("reduce_scatter", 4): 4, ("all_reduce", 2): 4}),
    ],
)
def test_ways_to_train_on_many_gpus(
    tmp_path: Path, way: str, replicas: int, share: int, collectives: dict[tuple[str, int], int]
) -> None:
    verdict = planned(tmp_path, BEGIN + WRAPS[way] + TRAIN)
    assert verdict.fits
    assert verdict.replicas == replicas
    found = counts(verdict)
    assert {key: found.get(key, 0) for key in collectives} == collectives
    assert verdict.time
    assert verdict.time.samples == 8 * replicas
    held = verdict.to_dict()["roles"][0]["at_the_peak_bytes"]
    assert held["optimizer state"] == pytest.approx(2 * WEIGHTS / share, rel=0.02)


def test_tensor_parallel_ranks_share_a_batch(tmp_path: Path) -> None:
    verdict = planned(tmp_path, BEGIN + WRAPS["tp"] + TRAIN, nodes=1)
    assert verdict.replicas == 1
    assert verdict.time
    assert verdict.time.samples == 8
    assert counts(verdict)["all_reduce", 4] >= 2


def test_a_world_of_many_ranks_is_one_process(tmp_path: Path) -> None:
    verdict = planned(tmp_path, BEGIN + WRAPS["fsdp2"] + TRAIN, nodes=16, gpus=8)
    assert [role.rank for role in verdict.roles] == [0]
    assert verdict.time
    assert verdict.time.gpus == 128
    assert verdict.time.shares["collectives"] > 0.1


def test_objects_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    text = """
said = [None] * world
dist.all_gather_object(said, {"rank": rank})
assert said[3] == {"rank": 0}
box = ["a folder" if rank == 0 else None]
dist.broadcast_object_list(box, src=0)
assert box == ["a folder"]
dist.barrier()
"""
    assert planned(tmp_path, BEGIN + text + TRAIN).fits


def test_tokens_are_routed_evenly_to_experts_and_each_text_is_shared(tmp_path: Path) -> None:
    verdict = planned(
        tmp_path,
        BEGIN
        + """
mesh = dist.init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "cp"))
"""
        + WRAPS["ddp"]
        + """
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
chosen = torch.randint(world, (64,), device="cuda")
for _ in range(4):
    network(data).sum().backward()
    leaving = torch.bincount(chosen, minlength=world)
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    gathered = [torch.empty_like(leaving) for _ in range(world)]
    dist.all_gather(gathered, torch.histc(chosen, bins=world, min=0, max=world - 1))
    assert leaving.tolist() == arriving.tolist() == gathered[1].tolist() == [8] * world
    sent = data.new_empty(64, 256)
    dist.all_to_all_single(torch.empty_like(sent), sent, arriving.tolist(), leaving.tolist())
    optimizer.step()
""",
    )
    assert verdict.replicas == 4
    assert counts(verdict)["all_to_all", 8] == 2
    assert any("routed evenly" in note for note in verdict.notes)


@pytest.mark.long
def test_checkpoints_and_sharded_optimizers(tmp_path: Path) -> None:
    verdict = planned(
        tmp_path,
        BEGIN
        + """
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer
"""
        + WRAPS["ddp"]
        + """
optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW)
for step in range(5):
    network(data).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    checkpoint.save(get_model_state_dict(network), checkpoint_id=f"saved/{step}")
""",
    )
    assert verdict.fits
    assert not (tmp_path / "saved").exists()
    held = verdict.to_dict()["roles"][0]["at_the_peak_bytes"]
    assert held["optimizer state"] < WEIGHTS  # an eighth of it, in whole parameters


LOOP = """
    processes = [mp.Process(target=main, args=(rank, 2)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""
SPAWN = "    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())"


@pytest.mark.parametrize("begin", [SPAWN, LOOP], ids=["spawn", "processes"])
def test_what_starts_ranks_itself_is_played_by_its_first_process(
    tmp_path: Path, begin: str
) -> None:
    (tmp_path / "train.py").write_text(
        """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
def main(rank, world):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="12355")
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    network = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[rank])
    network.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(4):
        network(torch.ones(4, 64, device=rank)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
"""
        + begin
    )
    answer = plan(Program((str(tmp_path / "train.py"),)), "t4", num_gpus=2)
    assert isinstance(answer, ClusterPlan)
    assert answer["t4"].world.size == 2
    assert counts(answer["t4"]) == {("all_reduce", 2): 1}
    assert answer["t4"].time
    assert answer["t4"].time.collectives[0].bytes == (64 * 64 + 64) * 2  # in bfloat16


@pytest.mark.parametrize(
    ("strategy", "share"), [pytest.param("ddp", 1, marks=pytest.mark.long), ("fsdp", 8)]
)
def test_a_trial_with_its_strategy(strategy: str, share: int) -> None:
    network = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    data = torch.ones(512, 256), torch.ones(512, 256)
    trial = ad.Trial(network, "adamw", nn.MSELoss()).to("cpu").with_options(strategy=strategy)
    trial = trial.with_generators(data, batch_size=64)
    answer = plan(trial, "h100", gpus=4, nodes=2)
    assert isinstance(answer, ClusterPlan)
    held = answer["h100"].to_dict()["roles"][0]["at_the_peak_bytes"]
    weights = 4 * sum(p.numel() for p in network.parameters())
    assert held["optimizer state"] == pytest.approx(2 * weights / share, rel=0.02)


def test_one_process_stays_one_process() -> None:
    def train() -> None:
        network = nn.Linear(64, 64, device="cuda")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(4):
            network(torch.ones(4, 64, device="cuda")).sum().backward()
            optimizer.step()

    assert isinstance(plan(train, gpus=["t4"]), Plan)
    with pytest.raises(UsageError, match="leave num_gpus out"):
        plan(train, nodes=2, num_gpus=2)


def test_the_last_rank_is_played_and_shown_too_where_shards_are_uneven(tmp_path: Path) -> None:
    (tmp_path / "a <b>.py").write_text(BEGIN + WRAPS["fsdp2"] + TRAIN)
    answer = plan(Launched((str(tmp_path / "a <b>.py"),), 1, 3, "torchrun"), "h100")
    assert isinstance(answer, ClusterPlan)
    verdict = answer["h100"]
    first, last = verdict.roles
    assert (first.rank, last.rank) == (0, 2)
    assert first.run.tensors > last.run.tensors
    assert verdict.tightest is first
    page = report_page(answer).decode()
    assert "a &lt;b&gt;.py" in page
    assert page.count("aria-label='computing'") == page.count(" at the peak, over ") == 2
    assert page.count("<svg ") == page.count("viewBox=")  # pictures are as wide as the page
    assert "3 ranks" in page
    wide = "<div class=scroll><table>"  # on a telephone it scrolls, not the page
    assert page.count(wide) == page.count("<table>") > 1
    assert verdict.time
    assert verdict.time.shares["computing"] <= 1


def test_what_is_too_large_is_said_of_its_rank(tmp_path: Path) -> None:
    text = BEGIN.replace("256", "40000") + WRAPS["ddp"] + TRAIN
    verdict = planned(tmp_path, text, nodes=1)
    assert not verdict.fits
    assert verdict.tightest.run.verdict == "no"
    assert verdict.tightest.run.margin < 0
