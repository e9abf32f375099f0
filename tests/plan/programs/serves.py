"""A network that is only used, for as long as requests come."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
model = model.cuda().eval()
with torch.inference_mode():
    while True:
        scores = model(torch.rand(16, 64).cuda(non_blocking=True))
        print(scores.argmax(1).tolist())
