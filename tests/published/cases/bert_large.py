"""Transformers' guide "Efficient Training on a Single GPU" (docs/source/en/perf_train_gpu_one.mdx), January 2022.

bert-large-uncased for classification, random tokens, sequences of 512, the Trainer of that time: AdamW of
transformers (one parameter after another), gradients clipped at 1.0, plain attention, gradients zeroed in place
(reading "2022"). Reading "today": PyTorch's AdamW as it is now, gradients set to None.
"""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--optim", choices=["adamw", "adafactor"], default="adamw")
parser.add_argument("--reading", choices=["2022", "today"], default="2022")
parser.add_argument(
    "--old-softmax", action="store_true", help="saves its input too, as before torch 1.11"
)
args = parser.parse_args()
then = args.reading == "2022"
VOCAB, DIM, LAYERS, HEADS, HIDDEN, LENGTH, DROPOUT = 30522, 1024, 24, 16, 4096, 512, 0.1


class OldSoftmax(torch.autograd.Function):
    """Softmax whose backward is given the input beside the result, as in torch up to 1.10."""

    @staticmethod
    def forward(ctx, x):
        result = torch.softmax(x, dim=-1)
        ctx.save_for_backward(result, x)
        return result

    @staticmethod
    def backward(ctx, grad):
        result, x = ctx.saved_tensors
        return torch._softmax_backward_data(grad, result, -1, x.dtype)


def softmax(x):
    if not args.old_softmax:
        return F.softmax(x, dim=-1)
    with torch.autocast("cuda", enabled=False):
        return OldSoftmax.apply(x.float())


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))
        self.dropout = nn.Dropout(DROPOUT)

    def heads(self, x):
        return x.view(*x.size()[:-1], HEADS, DIM // HEADS).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2))
        scores = scores / math.sqrt(DIM // HEADS)
        scores = scores + mask
        probabilities = self.dropout(softmax(scores))
        context = torch.matmul(probabilities, v)
        context = context.permute(0, 2, 1, 3).contiguous()
        return context.view(*context.size()[:-2], DIM)


class Output(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.dense = nn.Linear(size, DIM)
        self.LayerNorm = nn.LayerNorm(DIM, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, residual):
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = SelfAttention()
        self.attention_output = Output(DIM)
        self.intermediate = nn.Linear(DIM, HIDDEN)
        self.output = Output(HIDDEN)

    def forward(self, x, mask):
        attended = self.attention_output(self.attention(x, mask), x)
        return self.output(F.gelu(self.intermediate(attended)), attended)


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCAB, DIM, padding_idx=0)
        self.position = nn.Embedding(512, DIM)
        self.kind = nn.Embedding(2, DIM)
        self.LayerNorm = nn.LayerNorm(DIM, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)
        self.layer = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.pooler = nn.Linear(DIM, DIM)
        self.classifier = nn.Linear(DIM, 2)

    def forward(self, tokens, labels):
        positions = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0)
        mask = torch.ones(tokens.shape, device=tokens.device)
        mask = (1.0 - mask[:, None, None, :]) * -10000.0
        x = self.word(tokens) + self.kind(torch.zeros_like(tokens)) + self.position(positions)
        x = self.dropout(self.LayerNorm(x))
        for layer in self.layer:
            if args.checkpointing:
                x = checkpoint(layer, x, mask, use_reentrant=True)
            else:
                x = layer(x, mask)
        x = self.dropout(torch.tanh(self.pooler(x[:, 0])))
        return F.cross_entropy(self.classifier(x), labels)


class AdamW(torch.optim.Optimizer):
    """As transformers' AdamW without weight decay: each parameter alone, the step's number in Python."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["square"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                spread = state["square"].sqrt().add_(1e-6)
                unbiased = math.sqrt(1 - 0.999 ** state["step"]) / (1 - 0.9 ** state["step"])
                p.addcdiv_(state["mean"], spread, value=-group["lr"] * unbiased)


class Adafactor(torch.optim.Optimizer):
    """As transformers' Adafactor with scale_parameter=False, relative_step=False, no first moment."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                factored = grad.dim() >= 2
                if not state:
                    state["step"] = 0
                    if factored:
                        state["row"] = torch.zeros(grad.shape[:-1]).to(grad)
                        state["col"] = torch.zeros(grad.shape[:-2] + grad.shape[-1:]).to(grad)
                    else:
                        state["square"] = torch.zeros_like(grad)
                    state["RMS"] = 0
                state["step"] += 1
                state["RMS"] = p.norm(2) / p.numel() ** 0.5
                beta2t = 1.0 - math.pow(state["step"], -0.8)
                update = grad**2 + 1e-30
                if factored:
                    row, col = state["row"], state["col"]
                    row.mul_(beta2t).add_(update.mean(dim=-1), alpha=1.0 - beta2t)
                    col.mul_(beta2t).add_(update.mean(dim=-2), alpha=1.0 - beta2t)
                    r = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
                    update = torch.mul(r, col.unsqueeze(-2).rsqrt())
                    update.mul_(grad)
                else:
                    square = state["square"]
                    square.mul_(beta2t).add_(update, alpha=1.0 - beta2t)
                    update = square.rsqrt().mul_(grad)
                update.div_((update.norm(2) / update.numel() ** 0.5 / 1.0).clamp_(min=1.0))
                update.mul_(group["lr"])
                p.add_(-update)


with torch.device("cuda"):
    model = Bert()
if args.optim == "adafactor":
    optimizer = Adafactor(model.parameters(), 5e-5)
elif then:
    optimizer = AdamW(model.parameters(), 5e-5)
else:
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5, weight_decay=0.0)
scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)
total = torch.tensor(0.0, device="cuda")
model.train()
for step in range(5):
    for micro in range(args.accumulate):
        tokens = torch.randint(100, 30000, (args.batch, LENGTH)).to("cuda")
        labels = torch.zeros(args.batch, dtype=torch.long).to("cuda")
        with torch.autocast("cuda", torch.float16, enabled=args.fp16):
            loss = model(tokens, labels)
        loss = loss / args.accumulate
        scaler.scale(loss).backward()
        total += loss.detach()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False if then else None)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=not then)
