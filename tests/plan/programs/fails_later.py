# fails after complete steps, in an evaluation that needs a file
import torch
from torch import nn

model = nn.Linear(32, 4).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    loss = model(torch.rand(16, 32, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("perplexity", 1 / loss.item())
open("validation.txt").read()
