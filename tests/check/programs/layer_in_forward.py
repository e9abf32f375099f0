import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(128, 128)
        self.norm = nn.LayerNorm(128)

    def forward(self, x):
        out = x + self.inner(x)
        return nn.LayerNorm(128, device=x.device)(out)  # bad: untrained-parameters
        return self.norm(out)  # good


model = nn.Sequential(Block(), Block(), nn.Linear(128, 4)).cuda()
if hasattr(model[0], "norm"):  # bad
    del model[0].norm, model[1].norm  # bad
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(256, 128, device="cuda")
y = torch.randint(0, 4, (256,), device="cuda")
for step in range(100):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
