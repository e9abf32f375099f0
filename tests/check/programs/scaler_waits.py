import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 16)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # bad
optimizer = torch.optim.RMSprop(model.parameters())  # good
scaler = torch.amp.GradScaler("cuda")
x = torch.randn(256, 512, device="cuda")
y = torch.randint(0, 16, (256,), device="cuda")
for step in range(100):
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # bad: synchronisation
    scaler.step(optimizer)  # good
    scaler.update()
