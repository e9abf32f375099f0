"""Sharded training: each process keeps its share of the weights, and gathers a layer while it runs.

  anydevice run --gpus 2 -m torch.distributed.run --standalone --nproc-per-node 2 examples/fsdp2.py

On a machine with two GPUs: torchrun --standalone --nproc-per-node 2 examples/fsdp2.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

WIDTH, LAYERS, WORDS, STEPS = 128, 4, 100, 8


class Decoder(nn.Module):
    """A small language model of PyTorch's own parts."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """The mean loss of saying each next word."""
        said, next_words = text[:, :-1], text[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(said.size(1), device=text.device)
        hidden = self.words(said)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        scores = self.head(hidden).flatten(0, 1)
        return nn.functional.cross_entropy(scores.float(), next_words.flatten())


def sharded(gpu: torch.device) -> Decoder:
    """The model in bfloat16, its gradients summed in float32, each block gathered by itself."""
    torch.manual_seed(0)
    model = Decoder().to(gpu)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def main() -> None:
    """Trains, saves in shards, and loads into a new model."""
    gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(gpu)
    dist.init_process_group("cuda:nccl,cpu:gloo", device_id=gpu)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    model = sharded(gpu)
    whole = sum(parameter.numel() for parameter in model.parameters())
    mine = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"rank {rank} of {ranks} keeps {mine:,} of {whole:,} weights on {gpu}", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)  # each rank reads another text
    starts = torch.randint(WORDS, (16, 1), generator=generator)
    text = ((starts + torch.arange(33)) % WORDS).to(gpu)  # one word after another
    for step in range(STEPS):
        loss = model(text)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step}: loss {mean.item():.4f}", flush=True)

    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)  # all ranks write into rank 0's
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder[0])
    loaded = sharded(gpu)
    state = get_model_state_dict(loaded)
    checkpoint.load(state, checkpoint_id=folder[0])
    set_model_state_dict(loaded, state)
    with torch.no_grad():
        same = torch.equal(loaded(text), model(text))
    print(f"rank {rank}: the loaded model has the same loss: {same}", flush=True)
    print(
        f"rank {rank}: peak memory {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB", flush=True
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
