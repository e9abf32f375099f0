import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 512, device=device)
y = torch.randint(0, 16, (256,), device=device)

running = torch.zeros((), device=device)
for step in range(1000):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(step, loss.item())  # bad: synchronisation
    running += loss.detach()  # good
    if step % 100 == 99:  # good
        print(step, running.item() / 100)  # good
        running.zero_()  # good
