import torch
from torch import nn

class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def average(self):
        return self.sum / max(self.count, 1)

def accuracy(logits, y):
    return (logits.argmax(1) == y).float().mean()

model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 100)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
x, y = torch.randn(256, 512, device="cuda"), torch.randint(0, 100, (256,), device="cuda")
losses, accuracies = AverageMeter(), AverageMeter()
for step in range(500):
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.update(loss.detach(), len(y))
    accuracies.update(float(accuracy(logits, y)), len(y))  # bad: synchronisation
    accuracies.update(accuracy(logits, y), len(y))  # good
    if step % 100 == 0:
        print(f"{step}: loss {float(losses.average):.3f} accuracy {float(accuracies.average):.3f}")
