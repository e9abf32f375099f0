# early stopping and the best loss, both by values, after each epoch
import torch
from torch import nn


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.count, self.best, self.stop = patience, 0, None, False

    def __call__(self, loss, model):
        if self.best is None:
            self.best = loss
        elif loss > self.best - 1e-4:
            self.count += 1
            if self.count >= self.patience:
                self.stop = True
        else:
            self.best, self.count = loss, 0
            torch.save(model.state_dict(), "checkpoint.pt")


model = nn.Linear(32, 1).cuda()
optimizer = torch.optim.Adam(model.parameters())
stopping, best = EarlyStopping(), float("inf")
for epoch in range(100):
    for _ in range(2):
        loss = model(torch.rand(16, 32, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if loss.item() < best:
        best = loss.item()
        torch.save({"epoch": epoch, "state": model.state_dict()}, "best.pth")
    stopping(loss.item(), model)
    if stopping.stop:
        print("Early stopping")
        break
