import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.images = torch.rand(512, 3, 64, 64)

    def __len__(self):
        return 512

    def __getitem__(self, i):
        image = self.images[i]
        for _ in range(6):
            image = torch.nn.functional.avg_pool2d(image[None], 3, 1, 1)[0].flip(-1)
        return image


model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 3, 3)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Augmented(), batch_size=32, pin_memory=True, num_workers=1)  # bad
loader = DataLoader(Augmented(), batch_size=32, pin_memory=True, num_workers=8)  # good
for images in loader:  # bad: waits-for-data
for images in loader:  # good
    images = images.cuda(non_blocking=True)
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()
