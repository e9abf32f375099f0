import torch
from torch import nn

class Prefetcher:
    """Copies the next batch on a side stream."""
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            x, y = next(self.loader)
        except StopIteration:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = x.cuda(non_blocking=True), y.cuda(non_blocking=True)

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)  # good
            x, y = self.next
            x.record_stream(torch.cuda.current_stream())
            y.record_stream(torch.cuda.current_stream())
            self.preload()
            yield x, y

batches = [(torch.randn(128, 1024).pin_memory(), torch.randint(0, 10, (128,)).pin_memory()) for _ in range(32)]
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
for epoch in range(2):
    for x, y in Prefetcher(batches):
        loss = nn.functional.cross_entropy(model(x), y)  # bad: stream-race
        loss = nn.functional.cross_entropy(model(x), y)  # good
        loss.backward()
        opt.step()
        opt.zero_grad()
