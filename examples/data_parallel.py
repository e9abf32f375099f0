"""nn.DataParallel: one batch over several GPUs, and why the losses are those of a single one.

anydevice run --gpus 4 examples/data_parallel.py
"""

import torch
from torch import nn


class Network(nn.Module):
    """Says where it runs and how much of the batch it sees."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.tell = False

    def forward(self, x):
        """Called once for each GPU, in its own thread."""
        if self.tell:
            print(f"  {len(x)} samples on {x.device}, weights on {self.layers[0].weight.device}")
        return self.layers(x)


def train(network, batches):
    """Plain training: nothing here knows how many GPUs there are."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(inputs.cuda()), targets.cuda())
        loss.backward()
        optimizer.step()
        yield loss.item()


torch.manual_seed(0)
inputs = torch.randn(5, 30, 8)
batches = [(x, x.mean(1, keepdim=True)) for x in inputs]
alone = Network().cuda()
shared = Network().cuda()
shared.load_state_dict(alone.state_dict())
parallel = nn.DataParallel(shared)

print(f"A batch of 30 over {len(parallel.device_ids)} GPUs:")
shared.tell = True
output = parallel(batches[0][0].cuda())
shared.tell = False
print(f"and the outputs together again: {tuple(output.shape)} on {output.device}")

print("losses on one GPU     ", *(f"{loss:.5f}" for loss in train(alone, batches)))
print("losses on all of them ", *(f"{loss:.5f}" for loss in train(parallel, batches)))
print("names in a checkpoint:", *list(parallel.state_dict())[:2], "- save parallel.module instead")
