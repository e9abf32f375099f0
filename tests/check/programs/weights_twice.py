import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(1024, 512), torch.randint(0, 16, (1024,)))
loader = DataLoader(data, batch_size=128, shuffle=True, pin_memory=True)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 16)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for epoch in range(5):
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    last = copy.deepcopy(model.state_dict())  # bad: weights-twice
    last = {name: weight.cpu() for name, weight in model.state_dict().items()}  # good
