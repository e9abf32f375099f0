import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class OnGPU(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.full((32,), float(i), device="cuda")  # bad: cuda-in-forked-process
        return torch.full((32,), float(i))  # good


model = nn.Linear(32, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(OnGPU(), batch_size=8, num_workers=2)  # bad
loader = DataLoader(OnGPU(), batch_size=8, num_workers=2, pin_memory=True)  # good
for x in loader:
    x = x.cuda(non_blocking=True)
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
