import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.Linear(4096, 1024)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(24))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)  # bad
            x = checkpoint(block, x, use_reentrant=False)  # good
        return x


model = Net().to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(20480, 1024, device="cuda", dtype=torch.bfloat16)
for step in range(1000):
    optimizer.zero_grad()
    model(x).square().mean().backward()  # bad: no-checkpointing
    model(x).square().mean().backward()  # good
    optimizer.step()
