import torch
from torch import nn

layers = []
for _ in range(6):
    layers += [nn.Conv2d(128, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU()]
model = nn.Sequential(*layers).cuda()
images = torch.randn(64, 128, 56, 56, device="cuda")
model = model.to(memory_format=torch.channels_last)  # good
images = images.to(memory_format=torch.channels_last)  # good
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(images).float().mean()
    loss.backward()
    optimizer.step()
# bad: channels-first
