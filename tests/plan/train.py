"""A training program of the usual kind: anydevice plan tests/plan/train.py --network bert

It builds its networks from plain torch, straight on the GPU.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "virtual"))
import networks


class Bert(nn.Module):
    """BERT-base: 110 million parameters, with two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(30522, 768), nn.Embedding(512, 768)
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        self.norm = nn.LayerNorm(768)
        self.encoder = nn.TransformerEncoder(layer, 12)
        self.head = nn.Linear(768, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.token(tokens) + self.position(positions))
        return self.head(self.encoder(x)[:, 0])


def images(batch: int) -> tuple[Tensor, Tensor]:
    pixels = torch.rand(batch, 3, 224, 224, device="cuda")
    return pixels, torch.randint(1000, (batch,), device="cuda")


def sentences(batch: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(30522, (batch, 512), device="cuda")
    return tokens, torch.randint(2, (batch,), device="cuda")


def text(batch: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(50257, (batch, 1025), device="cuda")
    return tokens[:, :-1], tokens[:, 1:]


NETWORKS = {
    "vgg16": (networks.vgg16, images),
    "resnet50": (networks.resnet50, images),
    "bert": (Bert, sentences),
    "gpt2-xl": (lambda: networks.GPT2(1600, 48, 25), text),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    make, batches = NETWORKS[given.network]
    with torch.device("cuda"):
        network = make()
    optimizer = torch.optim.AdamW(network.parameters())
    for step in range(1000):
        inputs, targets = batches(given.batch_size)
        with torch.autocast("cuda", torch.bfloat16, enabled=given.bf16):
            loss = F.cross_entropy(network(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
