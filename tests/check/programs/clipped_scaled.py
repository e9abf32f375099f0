import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 512, device="cuda")
y = torch.randint(0, 16, (256,), device="cuda")
scaler = torch.amp.GradScaler("cuda")
for step in range(100):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # good
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # bad: clipped-while-scaled
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # good
    scaler.step(optimizer)
    scaler.update()
