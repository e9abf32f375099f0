"""pytorch-metric-learning: losses over mined pairs: python metric_learning.py cuda."""

import json
import sys

import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

device = sys.argv[1]
torch.manual_seed(0)
points = torch.randn(32, 8).to(device).requires_grad_()
labels = torch.randint(4, (32,)).to(device)
kinds = [losses.TripletMarginLoss, losses.ContrastiveLoss, losses.NTXentLoss, losses.CircleLoss]
kinds += [losses.MultiSimilarityLoss, losses.SupConLoss]
criteria = [kind() for kind in kinds]
criteria += [kind(4, 8).to(device) for kind in (losses.ArcFaceLoss, losses.ProxyNCALoss)]
pairs = miners.MultiSimilarityMiner()(points, labels)
numbers = []
for criterion in criteria:
    loss = criterion(points, labels, None if list(criterion.parameters()) else pairs)
    loss.backward()
    numbers += [loss.item(), points.grad.abs().sum().item()]
asked = AccuracyCalculator(include=("precision_at_1",), knn_func=CustomKNN(LpDistance()))
numbers.append(asked.get_accuracy(points.detach(), labels)["precision_at_1"])
print(json.dumps({"numbers": numbers, "device": points.grad.device.type}))
