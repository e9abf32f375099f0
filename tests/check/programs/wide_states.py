import torch
from torch import nn

with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(10)])
    x = torch.randn(64, 8192)
model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)  # good
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(1000):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()  # bad: float32-states
    optimizer.step()  # good
