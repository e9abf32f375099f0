import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.EmbeddingBag(100_000, 256), nn.ReLU(), nn.Linear(256, 16)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
words = torch.randint(0, 100_000, (64, 32), device="cuda")
labels = torch.randint(0, 16, (64,), device="cuda")
for step in range(100):
    optimizer.zero_grad(set_to_none=False)  # bad: zero-grad-fills
    optimizer.zero_grad()  # good
    loss = F.cross_entropy(model(words), labels)
    loss.backward()
    optimizer.step()
