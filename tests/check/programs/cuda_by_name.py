# with: portable
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"  # good
model = nn.Linear(64, 8).to("cuda")  # bad: hard-coded-cuda
model = nn.Linear(64, 8).to(device)  # good
with torch.no_grad():
    for batch in range(3):
        y = model(torch.ones(4, 64, device=model.weight.device))
