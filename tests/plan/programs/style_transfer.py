# LBFGS on an image, which prints within its closure
import torch
from torch import nn

features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()).cuda().eval()
image = torch.rand(1, 3, 32, 32, device="cuda", requires_grad=True)
goal = features(torch.rand(1, 3, 32, 32, device="cuda")).detach()
optimizer, run = torch.optim.LBFGS([image]), [0]
while run[0] <= 60:

    def closure():
        with torch.no_grad():
            image.clamp_(0, 1)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(features(image), goal)
        loss.backward()
        run[0] += 1
        if run[0] % 20 == 0:
            print(f"run {run}: loss {loss.item():4f}")
        return loss

    optimizer.step(closure)
