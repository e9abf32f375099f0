"""timm's Vision Transformer, plain PyTorch, with the programs that it was measured in.

--program timm: benchmark.py of pytorch-image-models (results/benchmark-train-amp-*-pt112-cu113-rtx3090.csv): AMP
    fp16 without a scaler, SGD with momentum, random data on the GPU, cudnn.benchmark.
--program deit: DeiT's engine.py with AMP, GradScaler, AdamW, mixup (HubHop/deit-mesa without Mesa).
--program ao: pytorch/ao benchmarks/benchmark_low_bit_adam.py: AdamW(fused=True), bf16 AMP or all bf16.
"""

import argparse
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--program", choices=["timm", "deit", "ao"], required=True)
parser.add_argument("--size", required=True)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--bf16", action="store_true", help="all in bf16")
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument(
    "--optim", choices=["fused", "default"], default="fused", help="of --program ao"
)
parser.add_argument(
    "--old-softmax", action="store_true", help="saves its input too, as before torch 1.11"
)
args = parser.parse_args()
SIZES = dict(  # dim, depth, heads, hidden, patch
    tiny=(192, 12, 3, 768, 16),
    small=(384, 12, 6, 1536, 16),
    base=(768, 12, 12, 3072, 16),
    base32=(768, 12, 12, 3072, 32),
    large=(1024, 24, 16, 4096, 16),
    huge=(1280, 32, 16, 5120, 14),
    giant=(1408, 40, 16, 6144, 14),
    dinov2_giant=(1536, 40, 24, 4096, 14),
)
DIM, DEPTH, HEADS, HIDDEN, PATCH = SIZES[args.size]
CLASSES = 45 if args.program == "ao" else 1000
DROP_PATH = 0.1 if args.program == "deit" else 0.0
FUSED = args.program == "ao"  # timm since 0.9: scaled_dot_product_attention
DINO = args.size == "dinov2_giant"


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
        return x.softmax(dim=-1)
    with torch.autocast("cuda", enabled=False):
        return OldSoftmax.apply(x.float())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, DIM * 3), nn.Linear(DIM, DIM)
        self.attn_drop, self.proj_drop = nn.Dropout(0.0), nn.Dropout(0.0)
        self.scale = (DIM // HEADS) ** -0.5

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if FUSED:
            x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        else:
            attn = (q @ k.transpose(-2, -1)) * self.scale
            attn = softmax(attn)
            attn = self.attn_drop(attn)
            x = attn @ v
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.drop = nn.Linear(DIM, HIDDEN), nn.GELU(), nn.Dropout(0.0)
        self.fc2 = nn.Linear(HIDDEN, DIM)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class SwiGLU(nn.Module):
    """timm's GluMlp with SiLU, gate_last=False: the hidden size is 2 × 4096."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(DIM, 2 * HIDDEN), nn.Linear(HIDDEN, DIM)
        self.act = nn.SiLU()

    def forward(self, x):
        x1, x2 = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(self.act(x1) * x2)


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(1e-5 * torch.ones(DIM))

    def forward(self, x):
        return x * self.gamma


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        keep = 1 - self.p
        mask = keep + torch.rand(
            (x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device
        )
        return x.div(keep) * mask.floor_()


class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM, eps=1e-6), nn.LayerNorm(DIM, eps=1e-6)
        self.attn, self.mlp = Attention(), SwiGLU() if DINO else Mlp()
        self.drop_path = DropPath(p) if p else nn.Identity()
        self.ls1, self.ls2 = (
            (LayerScale(), LayerScale()) if DINO else (nn.Identity(), nn.Identity())
        )

    def forward(self, x):
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.zeros(1, (224 // PATCH) ** 2 + 1, DIM))
        self.drop = nn.Dropout(0.0)
        self.blocks = nn.Sequential(*[Block(DROP_PATH * i / (DEPTH - 1)) for i in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM, eps=1e-6)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1)
        x = self.drop(x + self.pos)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpointing else block(x)
        return self.head(self.norm(x)[:, 0])


torch.backends.cudnn.benchmark = args.program != "ao"
with torch.device("cuda"):
    model = ViT()
if args.bf16:
    model = model.bfloat16()
if args.channels_last:
    model = model.to(memory_format=torch.channels_last)
model.train()
form = dict(memory_format=torch.channels_last) if args.channels_last else {}

if args.program == "timm":
    optimizer = torch.optim.SGD(
        model.parameters(), 1e-4, momentum=0.9, nesterov=True, foreach=False
    )
    images = torch.randn(args.batch, 3, 224, 224, device="cuda")
    if args.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            output = model(images)
            target = torch.empty(args.batch, device="cuda", dtype=torch.long).random_(CLASSES)
            F.cross_entropy(output, target).backward()
        optimizer.step()
        torch.cuda.synchronize()
elif args.program == "deit":
    optimizer = torch.optim.AdamW(
        model.parameters(), 5e-4, eps=1e-8, weight_decay=0.05, foreach=False
    )
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        samples = torch.rand(args.batch, 3, 224, 224).to("cuda", non_blocking=True)
        targets = torch.randint(CLASSES, (args.batch,)).to("cuda", non_blocking=True)
        flipped = samples.flip(0).mul_(1.0 - 0.7)  # mixup of the batch
        samples.mul_(0.7).add_(flipped)
        off = 0.1 / CLASSES
        y1 = torch.full((args.batch, CLASSES), off, device="cuda").scatter_(
            1, targets.view(-1, 1), 0.9 + off
        )
        y2 = torch.full((args.batch, CLASSES), off, device="cuda").scatter_(
            1, targets.flip(0).view(-1, 1), 0.9 + off
        )
        targets = y1 * 0.7 + y2 * 0.3
        with torch.autocast("cuda", torch.float16):
            outputs = model(samples)
            loss = torch.sum(-targets * F.log_softmax(outputs, dim=-1), dim=-1).mean()
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
else:
    optimizer = torch.optim.AdamW(
        model.parameters(), 1e-4, weight_decay=0, fused=True if args.optim == "fused" else None
    )
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    for _ in range(3):
        images = torch.rand(args.batch, 3, 224, 224).pin_memory()
        labels = torch.randint(CLASSES, (args.batch,)).pin_memory()
        if args.bf16:
            images = images.bfloat16()
        with torch.autocast("cuda", torch.bfloat16, enabled=not args.bf16):
            loss = F.cross_entropy(model(images.cuda()), labels.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
