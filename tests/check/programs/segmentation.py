import torch
from torch import nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Conv2d(64, 8, 1))

    def forward(self, images):
        return self.net(images)


model = Segmenter().cuda()
model = model.to(memory_format=torch.channels_last)  # good
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
images = torch.randn(16, 3, 256, 256, device="cuda")
images = images.contiguous(memory_format=torch.channels_last)  # good
labels = torch.randint(0, 8, (16, 256, 256), device="cuda")
for step in range(100):
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # bad: channels-first
