import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)  # bad
        self.seed = 0  # good

    def __len__(self):
        return 256

    def __getitem__(self, i):
        rng = np.random.default_rng((self.seed, i))  # good
        return torch.from_numpy(self.rng.normal(size=64).astype("float32"))  # bad
        return torch.from_numpy(rng.normal(size=64).astype("float32"))  # good


model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Noisy(), batch_size=16, num_workers=2, pin_memory=True)
for x in loader:  # bad: same-random-numbers
for x in loader:  # good
    x = x.cuda(non_blocking=True)
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()
