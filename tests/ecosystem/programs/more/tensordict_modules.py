"""tensordict: batches of named tensors, moved and saved: python tensordict_modules.py cuda."""

import json
import sys
import tempfile

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential

device = sys.argv[1]
torch.manual_seed(0)
batch = TensorDict({"a": torch.randn(6, 4), "b": {"c": torch.randn(6, 2)}}, [6])
there = (batch.pin_memory() if device == "cuda" else batch).to(device, non_blocking=True)
network = TensorDictSequential(
    TensorDictModule(torch.nn.Linear(4, 2), ["a"], ["hidden"]),
    TensorDictModule(lambda hidden, c: (hidden * c).sum(-1), ["hidden", ("b", "c")], ["out"]),
).to(device)
network(there)["out"].sum().backward()
weights = TensorDict.from_module(network)
with weights.detach().apply(lambda weight: weight * 2).to_module(network):
    doubled = network(there.clone())["out"]
with tempfile.TemporaryDirectory() as folder:
    there.detach().cpu().memmap(folder)
    loaded = TensorDict.load_memmap(folder).to(device)
packed = torch.stack([there.detach(), loaded]).consolidate()
results = (there["out"], doubled, packed["hidden"], next(network.parameters()).grad)
numbers = [value for result in results for value in result.flatten().tolist()]
print(json.dumps({"numbers": numbers, "device": packed["b", "c"].device.type}))
