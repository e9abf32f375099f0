"""A trial on several GPUs: the program of one GPU, started by torchrun, once for each GPU.

  anydevice run --gpus 2 -m torch.distributed.run --standalone --nproc-per-node 2 examples/trial_ddp.py

On a machine with two GPUs: torchrun --standalone --nproc-per-node 2 examples/trial_ddp.py
On a machine with one, or none: python examples/trial_ddp.py
"""  # noqa: E501

import torch
from torch import nn

import anydevice as ad

CLASSES = 4


def examples(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around one centre for each class."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, 16, generator=generator)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    return centres[labels] + torch.randn(samples, 16, generator=generator), labels


def main() -> None:
    """Trains: of each batch of 64, every GPU has its part."""
    inputs, labels = examples(3000)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    trial = ad.Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"]).to("auto")
    trial.with_options(seed=0)  # strategy="fsdp" has each GPU keep a share of the weights
    trial.with_generators(
        (inputs[:2000], labels[:2000]), (inputs[2000:], labels[2000:]), batch_size=64
    )
    trial.run(epochs=3)
    accuracy = trial.history[-1]["val_accuracy"]
    print(f"on {trial.device}: {accuracy:.1%} of the other 1000 are right, as all GPUs count them")


if __name__ == "__main__":
    main()
