"""monai: a 3-D U-Net trained and slid over a volume: python monai_segmentation.py cuda."""

import json
import sys

import monai
import torch

device = sys.argv[1]
monai.utils.set_determinism(0)
torch.use_deterministic_algorithms(False)
network = monai.networks.nets.UNet(3, 1, 2, (4, 8, 16), (2, 2)).to(device)
volume = torch.rand(1, 1, 16, 16, 16).to(device)
mask = (volume > 0.5).long()
criterion = monai.losses.DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
numbers = []
for _ in range(3):
    loss = criterion(network(volume), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    numbers.append(loss.item())
network.eval()
with torch.no_grad():
    whole = monai.inferers.sliding_window_inference(volume, (8, 8, 8), 2, network)
found = whole.argmax(1, keepdim=True).float()
dice = monai.metrics.DiceMetric()
dice(found, mask.float())
far = monai.metrics.compute_hausdorff_distance(found, mask.float(), include_background=True)
numbers += [whole.sum().item(), dice.aggregate().item(), far.item()]
print(json.dumps({"numbers": numbers, "device": found.device.type}))
