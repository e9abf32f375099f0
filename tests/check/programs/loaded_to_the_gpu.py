import os
import tempfile

import torch

path = os.path.join(tempfile.gettempdir(), "weights.pt")
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
torch.save(model.state_dict(), path)
state = torch.load(path)  # bad: load-without-map-location
state = torch.load(path, map_location="cpu")  # good
model.load_state_dict(state)
with torch.no_grad():
    print(model(torch.ones(4, 256, device="cuda")).shape)
