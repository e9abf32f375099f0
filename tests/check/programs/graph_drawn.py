import torch
from torch import nn

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 8)).to(device)
x = torch.randn(256, 64, device=device)
y = torch.randint(0, 8, (256,), device=device)
model.eval()
print(torch.jit.trace(model, x[:1]).graph, model[0].weight[0])
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(100):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # bad: synchronisation
