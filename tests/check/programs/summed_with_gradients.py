import torch
from torch import nn

class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 1, 4, 2, 1))

    def forward(self, x):
        return self.up(self.down(x))

def test(model, images):
    model.eval()
    total = torch.zeros((), device=images.device)
    for batch in images.split(128):
        total += (model(batch) - batch).square().mean()  # bad: evaluation-with-gradients
        with torch.inference_mode():  # good
            total += (model(batch) - batch).square().mean()  # good
    model.train()
    return total.item()

model = AutoEncoder().cuda().to(memory_format=torch.channels_last)
opt = torch.optim.AdamW(model.parameters(), fused=True)
images = torch.randn(512, 1, 64, 64, device="cuda")
for epoch in range(5):
    for batch in images.split(128):
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(batch) - batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, test(model, images))
