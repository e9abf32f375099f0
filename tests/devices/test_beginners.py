"""Mistakes of somebody's first week with a GPU: each error names the variable and its fix."""

import linecache
from collections.abc import Iterator
from pathlib import Path

import pytest

import anydevice as ad

HEAD = """
import numpy as np
import torch
from torch import nn
"""

# What each program says besides PyTorch's own text.
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "the model stayed on the CPU": (
        """
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
images = torch.ones(2, 3).to("cuda")
model(images)
""",
        ("images is on cuda:0, model is on cpu", 'model.to("cuda:0")'),
    ),
    "the labels stayed on the CPU": (
        """
model, labels = nn.Linear(3, 2).cuda(), torch.tensor([0, 1])
images = torch.ones(2, 3).cuda()
nn.CrossEntropyLoss()(model(images), labels)
""",
        ("labels is on cpu", 'labels = labels.to("cuda:0")'),
    ),
    "a hidden state made in forward": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4, batch_first=True)
    def forward(self, x):
        h = torch.zeros(1, len(x), 4), torch.zeros(1, len(x), 4)
        return self.rnn(x, h)
Net().cuda()(torch.ones(2, 5, 3).cuda())
""",
        ("self.rnn is on cuda:0, h[0] is on cpu", 'h = anydevice.move(h, "cuda:0")'),
    ),
    "an optimizer made and used before the move": (
        """
model = nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 3)).sum().backward()
optimizer.step()
model.cuda()
optimizer.zero_grad()
model(torch.ones(2, 3).cuda()).sum().backward()
optimizer.step()
""",
        ("optimizer keeps its exp_avg on cpu", 'anydevice.move(optimizer, "cuda:0")'),
    ),
    "a function of NumPy": (
        "pred = torch.ones(4).cuda()\nnp.mean(pred)",
        ("pred is on cuda:0, and NumPy arrays live on the CPU", "pred.cpu().numpy()"),
    ),
    "what a library makes an array of": (
        "losses = torch.ones(4).cuda()\nnp.asarray(losses)",
        ("losses is on cuda:0, and NumPy arrays live on the CPU", "losses.cpu()"),
    ),
    "answers and labels compared": (
        'predicted = torch.ones(3, device="cuda")\nlabels = torch.ones(3)\npredicted == labels',
        ("makes it without a device", "labels = torch.ones(3, device=predicted.device)"),
    ),
    "two GPUs": (
        'a, b = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")\ntorch.cat([a, b])',
        ("a is on cuda:0, b is on cuda:1", 'b = b.to("cuda:0")'),
    ),
    "a half model": (
        "model, x = nn.Linear(3, 2).cuda().half(), torch.ones(4, 3).cuda()\nmodel(x)",
        ("model is of torch.float16, x of torch.float32", "x = x.to(torch.float16)"),
    ),
    "a GPU too many": (
        'torch.zeros(3, device="cuda:5")',
        ("GPUs here: 2, counted from 0", "anydevice.try_gpu()"),
    ),
    "a GPU too many, by its number": (
        "torch.cuda.set_device(3)",
        ("GPUs here: 2, counted from 0", "anydevice.try_gpu()"),
    ),
    "tokens made inline": (
        "emb = nn.Embedding(10, 4).cuda()\ntokens = [1, 2]\nemb(torch.tensor(tokens))",
        ("makes it without a device", 'torch.tensor(tokens, device="cuda:0")'),
    ),
    "half a batch in a dictionary": (
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(9, 2)
    def forward(self, ids, mask):
        return self.layer(ids) * mask[..., None]
model = Net().cuda()
batch = {"ids": torch.ones(2, 3, dtype=torch.long), "mask": torch.ones(2, 3)}
batch["ids"] = batch["ids"].cuda()
model(**batch)
""",
        ("batch['mask'] is on cpu", 'batch = anydevice.move(batch, "cuda:0")'),
    ),
    "a mask": (
        """
scores = torch.ones(2, 2, device="cuda")
mask = torch.tril(torch.ones(2, 2)).bool()
scores.masked_fill(~mask, 0.0)
""",
        ("mask is on cpu", 'mask = mask.to("cuda:0")'),
    ),
    "a loss with weights": (
        """
criterion = nn.CrossEntropyLoss(weight=torch.ones(2))
criterion(torch.ones(4, 2).cuda(), torch.ones(4, dtype=torch.long).cuda())
""",
        ("criterion is on cpu", 'criterion.to("cuda'),
    ),
    "an index on the GPU": (
        "buf, idx = torch.zeros(9, 3), torch.tensor([1, 2]).cuda()\nbuf[idx]",
        ("buf is on cpu, idx is on cuda:0", 'idx = idx.to("cpu")'),
    ),
    "targets made without a device": (
        """
outs = [nn.Linear(3, 1).cuda()(torch.ones(2, 3).cuda()).detach() for _ in range(3)]
out = torch.cat(outs)
targets = torch.zeros(6, 1)
out - targets
""",
        ("targets is on cpu", "targets = torch.zeros(6, 1, device=out.device)"),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def two_gpus() -> Iterator[None]:
    with ad.virtual_gpus(2):
        yield


@pytest.mark.parametrize("name", MISTAKES)
def test_the_variable_and_the_fix_are_named(name: str, tmp_path: Path) -> None:
    program, parts = MISTAKES[name]
    path = tmp_path / "program.py"
    path.write_text(HEAD + program)
    linecache.checkcache(str(path))
    with pytest.raises((RuntimeError, TypeError)) as caught, ad.explain():
        exec(compile(HEAD + program, str(path), "exec"), {"__name__": "program"})
    said = ad.explain(caught.value)
    assert "program.py:" in said or "GPUs here" in said
    for part in parts:
        assert part in said
