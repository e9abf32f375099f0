# a higher-order op: flex_attention, compiled as its documentation asks for
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

attend = torch.compile(flex_attention)
project, out = nn.Linear(64, 192, device="cuda"), nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW([*project.parameters(), *out.parameters()])
causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cuda")
for _ in range(4):
    x = torch.randn(2, 256, 64, device="cuda")
    q, k, v = (t.view(2, 256, 4, 16).transpose(1, 2) for t in project(x).chunk(3, dim=-1))
    y = attend(q, k, v, block_mask=causal).transpose(1, 2).reshape(2, 256, 64)
    loss = out(y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
