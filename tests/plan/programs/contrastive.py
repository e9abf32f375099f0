# contrastive learning: a mask without the diagonal, and a queue whose pointer is a buffer
import torch
from torch import nn
from torch.nn import functional as F


class MoCo(nn.Module):
    def __init__(self, K=64):
        super().__init__()
        self.encoder, self.K = nn.Linear(32, 16), K
        self.register_buffer("queue", F.normalize(torch.randn(16, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        ptr = int(self.queue_ptr)
        assert self.K % keys.shape[0] == 0
        self.queue[:, ptr : ptr + keys.shape[0]] = keys.T
        self.queue_ptr[0] = (ptr + keys.shape[0]) % self.K

    def forward(self, a, b):
        q, k = F.normalize(self.encoder(a), dim=1), F.normalize(self.encoder(b), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone()], 1) / 0.07
        self.enqueue(k.detach())
        z = torch.cat([q, k])
        similar = (z @ z.T)[~torch.eye(len(z), dtype=torch.bool).cuda()].view(len(z), -1)
        return (
            F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long).cuda()) + similar.mean()
        )


model = MoCo().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
for _ in range(6):
    loss = model(torch.rand(16, 32).cuda(), torch.rand(16, 32).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
