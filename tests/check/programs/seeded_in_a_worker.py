import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Noisy(Dataset):
    def __init__(self, n=512):
        self.x = np.random.default_rng(1).standard_normal((n, 64), dtype=np.float32)
        self.rng = np.random.default_rng(0)
        self.worker = None

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        info = get_worker_info()  # good
        if info is not None and self.worker != info.id:  # good
            self.worker, self.rng = info.id, np.random.default_rng(info.seed)  # good
        noise = self.rng.standard_normal(64, dtype=np.float32)
        return torch.from_numpy(self.x[i] + 0.1 * noise), torch.tensor(i % 4)

if __name__ == "__main__":
    loader = DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
    opt = torch.optim.Adam(net.parameters(), fused=True)
    for epoch in range(3):
        for x, y in loader:  # bad: same-random-numbers
        for x, y in loader:  # good
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
