import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 512, device=device)
y = torch.randint(0, 16, (256,), device=device)

staging = torch.empty(256, 512, pin_memory=True)
sent = torch.cuda.Event()
with torch.no_grad():
    for batch in range(10):
        sent.synchronize()  # good
        staging.normal_()  # bad: buffer-overwritten
        staging.normal_()  # good
        on_gpu = staging.to(device, non_blocking=True)
        sent.record()  # good
        out = model(on_gpu)
