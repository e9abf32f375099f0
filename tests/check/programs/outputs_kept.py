import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(8))
        self.head = nn.Linear(512, 16)

    def forward(self, x):
        hidden = [x]
        for layer in self.layers:
            hidden.append(layer(hidden[-1]).relu())
        return self.head(hidden[-1]), hidden


model = Net().to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(16384, 512, device="cuda", dtype=torch.bfloat16)
y = torch.randint(0, 16, (16384,), device="cuda")
for step in range(1000):
    optimizer.zero_grad()
    logits, hidden = model(x)  # bad: outputs-kept
    logits = model(x)[0]  # good
    loss = F.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
