# inference: a prompt, then a token at a time with a cache that grows
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, past):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.out(y.transpose(1, 2).reshape(b, t, c)), (k, v)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 64), nn.Linear(64, 100)
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, tokens, past=None):
        x, present = self.embed(tokens), []
        for i, layer in enumerate(self.layers):
            y, kept = layer(x, past[i] if past else None)
            x = x + y
            present.append(kept)
        return self.head(x), present


model = GPT().cuda().eval()
tokens, past = torch.randint(100, (1, 32), device="cuda"), None
answer = []
with torch.inference_mode():
    for _ in range(20):
        logits, past = model(tokens, past)
        logits = logits[:, -1] / 0.8
        top, _ = torch.topk(logits, 10)
        logits[logits < top[:, [-1]]] = -float("inf")
        tokens = torch.multinomial(torch.softmax(logits, -1), 1)
        answer.append(tokens.item())
        if tokens.item() == 99:
            break
print(answer, torch.cuda.max_memory_allocated())
