import torch
from torch import nn

attention = nn.MultiheadAttention(64, 4, batch_first=True).cuda()
optimizer = torch.optim.Adam(attention.parameters(), lr=1e-3, fused=True)
mask = nn.Transformer.generate_square_subsequent_mask(32)  # bad
mask = nn.Transformer.generate_square_subsequent_mask(32, device="cuda")  # good
x = torch.randn(8, 32, 64, device="cuda")
for step in range(100):
    optimizer.zero_grad()
    scores = 0.1 * x[:, :, :32] + mask  # bad: device-error
    scores = 0.1 * x[:, :, :32] + mask  # good
    out, _ = attention(x + scores.sum(-1, keepdim=True), x, x, need_weights=False)
    out.mean().backward()
    optimizer.step()
