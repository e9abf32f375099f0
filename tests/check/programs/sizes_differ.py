import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)]).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for length in range(8192, 32768, 1536):  # bad
for length in range(31232, 8191, -1536):  # good
    x = torch.randn(length, 1024, device="cuda", dtype=torch.bfloat16)
    optimizer.zero_grad()
    loss = model(x).square().mean()  # bad: fragmentation
    loss = model(x).square().mean()  # good
    loss.backward()
    optimizer.step()
