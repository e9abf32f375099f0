# with: portable
import torch
from torch import nn

device = torch.device("cuda")  # bad: hard-coded-cuda
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # good
model = nn.Linear(64, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(32, 64, device=device)
for step in range(100):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
