import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 512, device=device)
y = torch.randint(0, 16, (256,), device=device)

correct = 0  # bad
correct = torch.zeros((), dtype=torch.int64, device=device)  # good
for step in range(1000):
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    predicted = out.argmax(1).cpu().numpy()  # bad: synchronisation
    correct += (predicted == y.cpu().numpy()).sum()  # bad
    correct += (out.argmax(1) == y).sum()  # good
print(correct)
