"""A small GPT in plain PyTorch. It knows nothing of anydevice.

anydevice run --gpu t4 examples/gpt.py --layers 2 --width 64 --context 64
anydevice plan --gpu t4 --gpu a100-80gb --batch-arg --batch-size examples/gpt.py
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Attention over the text so far, then two linear layers."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        """Adds to each position what it learns from the positions before it."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next character of a text."""

    def __init__(self, characters, layers, width, context):
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, max(width // 64, 1)) for _ in range(layers)))
        self.head = nn.Linear(width, characters)

    def forward(self, tokens):
        """The scores of each character, at each position."""
        return self.head(self.blocks(self.characters(tokens) + self.positions))


def main():
    """Trains on the characters of this file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("training on", torch.cuda.get_device_name() if device.type == "cuda" else "the CPU")
    text = torch.tensor(list(Path(__file__).read_bytes()))
    model = GPT(256, args.layers, args.width, args.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        starts = torch.randint(len(text) - args.context, (args.batch_size, 1))
        window = text[starts + torch.arange(args.context + 1)].to(device)
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
