# what the host put on the GPU is known: lengths, labels, masks made of them
import torch
from torch import nn

net = nn.Linear(8, 3, device="cuda")
optimizer = torch.optim.Adam(net.parameters())
lengths = torch.tensor([3, 5, 2, 6]).cuda()
labels = torch.tensor([0, 1, 1, 2, 0, 1]).cuda()
for _ in range(4):
    longest = lengths.max().item()
    if longest > 4:
        x = torch.rand(4, longest, 8, device="cuda")
    inside = torch.arange(longest, device="cuda")[None] < lengths[:, None]
    flat = x[inside]
    assert flat.shape == (16, 8) and longest == 6
    similar = torch.eye(6, dtype=torch.bool, device="cuda")
    off_diagonal = torch.rand(6, 6, device="cuda")[~similar].view(6, 5)
    loss = net(flat).sum() + off_diagonal.sum() + net(x[0])[labels == 1].sum()
    if (labels == 1).sum() != 3:
        raise ValueError("three labels are 1")
    if [int(each) for each in lengths] != [3, 5, 2, 6] or not all(labels == labels.clone()):
        raise ValueError("each of them is known")
    for few in lengths.split(3):
        assert few.sum() in (10, 6)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
