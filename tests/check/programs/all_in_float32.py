import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(4096, 2048, device="cuda")
for step in range(100):
    optimizer.zero_grad()
    if True:  # bad
    with torch.autocast("cuda", dtype=torch.bfloat16):  # good
        loss = F.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
# bad: no-autocast
