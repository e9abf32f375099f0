import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 512, device=device)
y = torch.randint(0, 16, (256,), device=device)

for step in range(100):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if True:  # bad
    if step % 50 == 49:  # good
        torch.save(model.state_dict(), "/tmp/anydevice-checkpoint.pt")  # bad: saved-each-step
        torch.save(model.state_dict(), "/tmp/anydevice-checkpoint.pt")  # good
