# no network at all: products of matrices
import torch

a = torch.rand(1024, 1024, device="cuda")
for _ in range(10):
    a = (a @ a).relu_() / 100
print(a.mean().item())
torch.testing.assert_close(a @ a, torch.mm(a, a) + 0.5)
