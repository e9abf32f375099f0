"""Data parallel training: each process trains on its share of every batch, on its own GPU.

  anydevice run --gpus 2 -m torch.distributed.run --standalone --nproc-per-node 2 examples/ddp.py

On a machine with two GPUs: torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, CLASSES = 3, 64, 4


def examples() -> TensorDataset:
    """Points around one centre for each class, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, 16, generator=generator)
    labels = torch.randint(CLASSES, (2048,), generator=generator)
    return TensorDataset(centres[labels] + torch.randn(2048, 16, generator=generator), labels)


def main() -> None:
    """Trains, and shows that the ranks end with the same weights."""
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", device_id=gpu)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {ranks} is on {gpu}, a {torch.cuda.get_device_name(gpu)}", flush=True)

    torch.manual_seed(rank)  # the ranks begin apart: DDP gives all of them rank 0's weights
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(gpu)
    network = DistributedDataParallel(network, device_ids=[gpu])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    data = examples()
    sampler = DistributedSampler(data)  # deals the examples out, none to two ranks
    loader = DataLoader(data, batch_size=BATCH // ranks, sampler=sampler, pin_memory=True)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # another order in each epoch
        total = torch.zeros((), device=gpu)
        for inputs, labels in loader:
            inputs, labels = inputs.to(gpu, non_blocking=True), labels.to(gpu, non_blocking=True)
            loss = nn.functional.cross_entropy(network(inputs), labels)
            loss.backward()  # gradients are averaged over the ranks while backward runs
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean = total / len(loader)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}, over all ranks", flush=True)

    weight = network.module[0].weight.detach()
    weights = [torch.empty_like(weight) for _ in range(ranks)]
    dist.all_gather(weights, weight)
    if rank == 0:
        same = all(torch.equal(weight, other) for other in weights)
        print(f"all ranks have the same weights: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
