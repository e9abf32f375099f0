"""GPT-2 124M in nanoGPT's architecture: batch 12 of 1,024 tokens, bfloat16, fused AdamW.

`python nanogpt.py MODE [LAYERS]`, where the mode is eager, compile, or one of torch.compile's.
"""

import math
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Attention(nn.Module):
    mask: Tensor

    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.dropout, self.last = nn.Dropout(0.0), nn.Dropout(0.0)
        self.register_buffer("mask", torch.tril(torch.ones(length, length))[None, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.c_attn(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in split)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = self.dropout(F.softmax(scores, dim=-1)) @ v
        return self.last(self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width)))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, length: int, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = Norm(width), Attention(length, width, heads)
        self.ln_2, self.mlp = Norm(width), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(
        self, layers: int, vocabulary: int = 50304, length: int = 1024, width: int = 768
    ) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList(Block(length, width, 12) for _ in range(layers))
        self.ln_f = Norm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(at))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def train(mode: str = "eager", layers: int = 12) -> None:
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model = GPT(layers).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    forward = model
    if mode != "eager":
        forward = torch.compile(model, **({} if mode == "compile" else {"mode": mode}))
    for _ in range(10):
        x, y = torch.randint(50304, (2, 12, 1024), device="cuda")
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            _, loss = forward(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train(*sys.argv[1:2], *map(int, sys.argv[2:3]))
