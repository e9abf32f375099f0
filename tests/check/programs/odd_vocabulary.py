import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 50257  # bad
VOCABULARY = 50304  # good
model = nn.Sequential(nn.Embedding(VOCABULARY, 768), nn.Linear(768, VOCABULARY)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
tokens = torch.randint(0, 50000, (8, 1024), device="cuda")
for step in range(100):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(tokens)  # bad: unaligned-sizes
        out = model(tokens)  # good
    loss = F.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    optimizer.step()
