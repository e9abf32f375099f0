"""Lit-GPT at commit 8641822: finetune/{lora,adapter,adapter_v2}.py, as in tutorials/resource-tables.md.

bf16-true, no quantization, AdamW, cross entropy and lm_head in chunks of 128 tokens. The source accumulates
128 // micro batch gradients and puts the longest sequence into the very first micro batch; here there are two
micro batches a step, the first of them as long as the longest sequence, the other 256 tokens. Fabric's "bf16-true"
gives the network's outputs in the default dtype, fp32 (lightning.fabric.plugins.precision.half); --bare is without.
"""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["phi", "stablelm", "llama7b", "llama13b"], required=True)
parser.add_argument("--method", choices=["lora", "adapter", "adapter_v2"], default="lora")
parser.add_argument("--micro", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--bare", action="store_true")
parser.add_argument(
    "--norm", choices=["bf16", "fp32"], default="bf16", help="RMSNorm before or after 6178c7cc"
)
args = parser.parse_args()

NEOX = dict(
    block=4096,
    rotary=0.25,
    parallel=True,
    bias=True,
    norm="layer",
    mlp="neox",
    shared=False,
    head_bias=False,
)
LLAMA = dict(
    block=4096,
    rotary=1.0,
    parallel=False,
    bias=False,
    norm="rms",
    mlp="llama",
    shared=False,
    head_bias=False,
)
MODELS = dict(
    phi=dict(
        NEOX,
        vocab=51200,
        layers=24,
        heads=32,
        dim=2048,
        rotary=0.5,
        shared=True,
        head_bias=True,
        block=2048,
        gelu="tanh",
        longest=1044,
    ),
    stablelm=dict(NEOX, vocab=50688, layers=16, heads=32, dim=4096, gelu="none", longest=1034),
    llama7b=dict(LLAMA, vocab=32000, layers=32, heads=32, dim=4096, hidden=11008, longest=1304),
    llama13b=dict(LLAMA, vocab=32000, layers=40, heads=40, dim=5120, hidden=13824, longest=1304),
)
c = argparse.Namespace(**MODELS[args.model])
c.hidden = getattr(c, "hidden", 4 * c.dim)
c.head = c.dim // c.heads
c.rope = int(c.rotary * c.head)
R, ALPHA, DROPOUT = 8, 16, 0.05


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        dtype = x.dtype
        if args.norm == "fp32":
            x = x.float()
        norm_x = torch.mean(x * x, dim=-1, keepdim=True)
        x_normed = x * torch.rsqrt(norm_x + self.eps)
        return (self.weight * x_normed).to(dtype=dtype)


class AdapterV2Linear(nn.Module):
    def __init__(self, i, o, bias):
        super().__init__()
        self.linear = nn.Linear(i, o, bias=bias)
        self.adapter_bias = nn.Parameter(torch.zeros(o))
        self.adapter_scale = nn.Parameter(torch.ones(o))

    def forward(self, x):
        return self.adapter_scale * (self.linear(x) + self.adapter_bias)


class LoRAQKV(nn.Module):
    """LoRA on query and value, not on key."""

    def __init__(self, i, o, bias):
        super().__init__()
        self.linear = nn.Linear(i, o, bias=bias)
        self.lora_dropout = nn.Dropout(DROPOUT)
        self.lora_A = nn.Parameter(torch.zeros(R * 2, i))
        self.lora_B = nn.Parameter(torch.zeros(2 * i, R))
        self.scaling = ALPHA / R
        self.index = [*range(i), *range(2 * i, o)]

    def zero_pad(self, x):
        x = x.transpose(0, 1)
        result = x.new_zeros((*x.shape[:-1], self.linear.out_features))
        result = result.view(-1, self.linear.out_features)
        index = torch.tensor(self.index, device=result.device)
        result = result.index_copy(1, index, x.reshape(-1, len(self.index)))
        return result.view((*x.shape[:-1], self.linear.out_features)).transpose(0, 1)

    def forward(self, x):
        pretrained = self.linear(x)
        after_A = F.linear(self.lora_dropout(x), self.lora_A)
        after_B = F.conv1d(
            after_A.transpose(-2, -1), self.lora_B.unsqueeze(-1), groups=2
        ).transpose(-2, -1)
        lora = self.zero_pad(after_B) * self.scaling
        return pretrained + lora


def linear(i, o, bias):
    return (AdapterV2Linear if args.method == "adapter_v2" else nn.Linear)(i, o, bias=bias)


def norm():
    return RMSNorm(c.dim) if c.norm == "rms" else nn.LayerNorm(c.dim, eps=1e-5)


def apply_rope(x, cos, sin):
    size = x.size(-1)
    x1 = x[..., : size // 2]
    x2 = x[..., size // 2 :]
    rotated = torch.cat((-x2, x1), dim=-1)
    roped = (x * cos) + (rotated * sin)
    return roped.type_as(x)


class Attention(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.attn = (LoRAQKV if args.method == "lora" else linear)(c.dim, 3 * c.dim, c.bias)
        self.proj = linear(c.dim, c.dim, c.bias)
        self.adapted = args.method != "lora" and index >= 2
        if self.adapted:
            self.adapter_wte = nn.Embedding(10, c.dim)
            self.gating_factor = nn.Parameter(torch.zeros(1, 1, c.heads, 1))

    def sdpa(self, q, k, v, mask=None):
        scale = 1.0 / math.sqrt(c.head)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=0.0, scale=scale, is_causal=mask is None
        )
        return y.transpose(1, 2)

    def attend(self, q, k, v):
        y = self.sdpa(q, k, v)
        if not self.adapted:
            return y
        prefix = self.adapter_wte.weight.reshape(1, 10, c.dim)
        aqkv = self.attn(prefix)
        aqkv = aqkv.view(1, 10, c.heads, 3, c.head).permute(0, 2, 3, 1, 4)
        _, ak, av = aqkv.split((1, 1, 1), dim=2)
        ak = ak.reshape(1, -1, 10, c.head)
        av = av.reshape(1, -1, 10, c.head)
        amask = torch.ones(q.size(2), 10, dtype=torch.bool, device=q.device)
        ay = self.sdpa(q, ak, av, amask)
        return y + self.gating_factor * ay

    def forward(self, x, cos, sin):
        B, T, C = x.size()
        qkv = self.attn(x)
        qkv = qkv.view(B, T, c.heads, 3, c.head).permute(0, 2, 3, 1, 4)
        q, k, v = qkv.split((1, 1, 1), dim=2)
        q = q.reshape(B, -1, T, c.head)
        k = k.reshape(B, -1, T, c.head)
        v = v.reshape(B, -1, T, c.head)
        q_roped = apply_rope(q[..., : c.rope], cos, sin)
        k_roped = apply_rope(k[..., : c.rope], cos, sin)
        q = torch.cat((q_roped, q[..., c.rope :]), dim=-1)
        k = torch.cat((k_roped, k[..., c.rope :]), dim=-1)
        y = self.attend(q, k, v)
        y = y.reshape(B, T, C)
        return self.proj(y)


class NeoxMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = linear(c.dim, c.hidden, c.bias)
        self.proj = linear(c.hidden, c.dim, c.bias)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x), approximate=c.gelu))


class LlamaMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc_1 = linear(c.dim, c.hidden, c.bias)
        self.fc_2 = linear(c.dim, c.hidden, c.bias)
        self.proj = linear(c.hidden, c.dim, c.bias)

    def forward(self, x):
        x_fc_1 = self.fc_1(x)
        x_fc_2 = self.fc_2(x)
        x = F.silu(x_fc_1) * x_fc_2
        return self.proj(x)


class Block(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm_1 = norm()
        self.attn = Attention(index)
        if not c.shared:
            self.norm_2 = norm()
        self.mlp = NeoxMLP() if c.mlp == "neox" else LlamaMLP()

    def forward(self, x, cos, sin):
        n_1 = self.norm_1(x)
        h = self.attn(n_1, cos, sin)
        if c.parallel:
            n_2 = n_1 if c.shared else self.norm_2(x)
            x = x + h + self.mlp(n_2)
        else:
            x = x + h
            x = x + self.mlp(self.norm_2(x))
        return x


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.lm_head = linear(c.dim, c.vocab, c.head_bias)
        self.wte = nn.Embedding(c.vocab, c.dim)
        self.h = nn.ModuleList(Block(i) for i in range(c.layers))
        self.ln_f = norm()
        theta = 1.0 / (10000 ** (torch.arange(0, c.rope, 2, dtype=torch.float32) / c.rope))
        angles = torch.outer(torch.arange(c.longest, dtype=torch.float32), theta).repeat(1, 2)
        self.register_buffer("cos", torch.cos(angles), persistent=False)
        self.register_buffer("sin", torch.sin(angles), persistent=False)

    def forward(self, idx, chunk):
        T = idx.size(1)
        cos, sin = self.cos[:T], self.sin[:T]
        x = self.wte(idx)
        for block in self.h:
            x = block(x, cos, sin)
        x = self.ln_f(x)
        return [self.lm_head(x_i) for x_i in x.split(chunk, dim=1)]


def chunked_cross_entropy(logits, targets):
    logit_chunks = [chunk.reshape(-1, chunk.size(-1)) for chunk in logits]
    target_chunks = [chunk.reshape(-1) for chunk in targets.split(logits[0].size(1), dim=1)]
    losses = [
        F.cross_entropy(logit, target, ignore_index=-1, reduction="none")
        for logit, target in zip(logit_chunks, target_chunks)
    ]
    return torch.cat(losses).mean()


def trainable(name):
    if args.method == "lora":
        return "lora_" in name
    parts = ["adapter_wte", "gating_factor"]
    if args.method == "adapter_v2":
        parts += ["adapter_scale", "adapter_bias", "norm_1", "norm_2", "ln_f"]
    return any(part in name for part in parts)


torch.set_float32_matmul_precision("high")
torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = GPT()
torch.set_default_dtype(torch.float32)
for name, parameter in model.named_parameters():
    parameter.requires_grad = trainable(name)
params = [p for p in model.parameters() if p.requires_grad]
print(f"Number of trainable parameters: {sum(p.numel() for p in params):,}")
optimizer = torch.optim.AdamW(params, lr=3e-4, weight_decay=0.01)


def get_batch(length):
    x = torch.randint(c.vocab, (args.micro, length))
    y = torch.randint(c.vocab, (args.micro, length))
    return x.pin_memory().to("cuda"), y.pin_memory().to("cuda")


for step in range(3):
    for micro in range(args.accumulate):
        input_ids, targets = get_batch(256 if micro else c.longest)
        logits = model(input_ids, 128)
        if not args.bare:
            logits = [chunk.to(torch.float32) for chunk in logits]
        logits[-1] = logits[-1][..., :-1, :]
        loss = chunked_cross_entropy(logits, targets[..., 1:])
        (loss / args.accumulate).backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"Memory used: {torch.cuda.max_memory_allocated() / 1e9:.02f} GB")
