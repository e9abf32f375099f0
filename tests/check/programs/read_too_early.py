import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda")
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, 512, device=device)
y = torch.randint(0, 16, (256,), device=device)

with torch.no_grad():
    for batch in range(10):
        out = model(x).softmax(1)
        host = out.to("cpu", non_blocking=True)
        torch.cuda.current_stream().synchronize()  # good
        print(host.sum())  # bad: read-before-arrival
        print(host.sum())  # good
