"""Each program makes a device mistake among innocent tensors; the suggested fix has to work."""

import linecache
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import anydevice as ad

HEAD = """
import torch
from torch import nn
import anydevice as ad

device = torch.device(DEVICE)
gpu = device
config = torch.ones(3).clone()  # innocent: it is meant to be on the CPU

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        self.fc2 = nn.Linear(4, 2)
    def forward(self, x):
        return self.fc2(self.fc1(x))

def ones(*shape):
    return torch.ones(*shape).clone()
"""

PROGRAMS = {
    "two tensors": """
x = ones(3).to(gpu)
y = ones(3)
with ad.explain():
    out = x + y * config.sum().item()
""",
    "an input moved inline, the target not": """
net = Net().to(gpu)
x, y = ones(2, 3), ones(2, 2)
with ad.explain():
    loss = (net(x.to(gpu)) - y) ** 2
""",
    "a loss of an input moved inline": """
net, criterion = Net().to(gpu), nn.MSELoss()
x, y = ones(2, 3), ones(2, 2)
with ad.explain():
    loss = criterion(net(x.to(gpu)), y)
""",
    "a shape taken from an innocent tensor": """
x, bad = ones(1).to(gpu), ones(3)
with ad.explain():
    out = torch.cat([x.expand(config.shape), bad])
""",
    "a legal index beside the culprit": """
t, bad, index = ones(5).to(gpu), ones(2), torch.tensor([0, 1]).clone()
with ad.explain():
    out = t[:2] + bad
""",
    "both sides moved or not inline": """
a, b = ones(3), ones(3)
with ad.explain():
    out = a.to(gpu) + b
""",
    "in a helper, by keyword": """
def squared(predicted, *, wanted):
    return ((predicted - wanted) ** 2).mean()
x, labels = ones(3).to(gpu), ones(3)
with ad.explain():
    out = squared(x, wanted=labels)
""",
    "a batch in a dict": """
net, batch = Net().to(gpu), {"x": ones(2, 3)}
with ad.explain():
    out = net(**batch)
""",
    "a batch in a named tuple": """
from collections import namedtuple
batch = namedtuple("Batch", "x y")(ones(2, 3), ones(2))
net, x = Net().to(gpu), batch.x
with ad.explain():
    out = net(x)
""",
    "a network on the CPU": """
net, x = Net(), ones(2, 3).to(gpu)
with ad.explain():
    out = net(x)
""",
    "a dropped result": """
net, x = Net().to(gpu), ones(2, 3)
x.float()
x.to(gpu)
with ad.explain():
    out = net(x)
""",
    "a move that moved nothing": """
net, x = Net().to(gpu), ones(2, 3)
x.to(torch.float32)
x.cpu()
with ad.explain():
    out = net(x)
""",
    "made without a device": """
x = ones(3).to(gpu)
hidden = torch.zeros(3)
with ad.explain():
    out = x + hidden
""",
    "made inline": """
x = ones(3).to(gpu)
with ad.explain():
    out = x + torch.zeros(3)
""",
    "a plain attribute": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.scale = torch.full((3,), 2.0)
    def forward(self, x):
        return self.fc(x) * self.scale
class Child(Scaled):
    pass
net = Child().to(gpu)
with ad.explain():
    out = net(ones(2, 3).to(gpu))
""",
    "a state made in forward": """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = None
        self.fc = nn.Linear(3, 3)
    def forward(self, x):
        self.h = torch.zeros(3)
        return self.fc(x) + self.h
net, x = Recurrent().to(gpu), ones(2, 3).to(gpu)
with ad.explain():
    out = net(x)
""",
    "an input that the module remembers": """
class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None
        self.fc = nn.Linear(3, 3)
    def forward(self, x):
        self.last = x
        return self.fc(x)
net, data = Remembers().to(gpu), ones(2, 3)
with ad.explain():
    out = net(data)
""",
    "layers in a plain list": """
class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3) for _ in range(2)]
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
net = Listed().to(gpu)
with ad.explain():
    out = net(ones(2, 3).to(gpu))
""",
    "a network that is split by mistake": """
net = Net()
net.fc1.to(gpu)
with ad.explain():
    out = net(ones(2, 3).to(gpu))
""",
    "an index on the GPU into data on the CPU": """
data, permutation = ones(4), torch.tensor([1, 0]).to(gpu)
with ad.explain():
    out = data[permutation]
""",
    "a parameter of the user's own, which an optimizer holds": """
w = nn.Parameter(ones(3))
optimizer = torch.optim.SGD([w], lr=0.1)
x = ones(3).to(gpu)
with ad.explain():
    out = x * w
""",
}
NOT_ON_META = {
    "an index on the GPU into data on the CPU",  # PyTorch allows it there
    "a parameter of the user's own, which an optimizer holds",  # .data cannot become meta
}


def run(program: str, path: Path) -> None:
    path.write_text(program)
    linecache.checkcache(str(path))
    exec(compile(program, str(path), "exec"), {"__name__": "program"})


def fixed(program: str, note: str) -> str:
    """The program with the fix put in: over the line that it rewrites, or before the failure."""
    place, line = re.search(r":(\d+): ", note), re.search(r"  Fix: ([^\n]*)", note)
    assert place
    assert line
    fix = line[1].partition(", or keep it")[0]
    lines = program.split("\n")
    dropped = fix.partition(" = ")[2]
    called = re.match(r'self.register_buffer\("(\w+)"', fix)
    target = f"self.{called[1]}" if called else fix.partition(" = ")[0]
    makes = fix.partition(" = ")[2].partition("(")[0]
    for number, old in enumerate(lines):
        code = old.strip()
        is_same = code.startswith(f"{target} = ") and (called or makes in old or "nn." in makes)
        if code and (code == dropped or (is_same and not code.startswith("with"))):
            lines[number] = old[: len(old) - len(old.lstrip())] + fix
            return "\n".join(lines)
    number = int(place[1]) - 1
    if " = " not in fix and fix.startswith("torch."):  # made inline
        lines[number] = lines[number].replace("torch.zeros(3)", fix)
    else:
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        lines.insert(number, indent + fix)
    return "\n".join(["import anydevice", *lines])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fix_works(name: str, elsewhere: torch.device, tmp_path: Path) -> None:
    if elsewhere.type == "meta" and name in NOT_ON_META:
        pytest.skip("the meta device makes no such mistake")
    program = HEAD.replace("DEVICE", repr(str(elsewhere))) + PROGRAMS[name]
    with pytest.raises(RuntimeError) as caught:
        run(program, tmp_path / "program.py")
    (note,) = caught.value.__notes__
    assert "config" not in note
    run(fixed(program, note), tmp_path / "fixed.py")


QUIET: dict[str, str] = {
    "what a call of unknown device returned": """
def target(n):
    return ones(n)
def fit(net, data):
    out = net(data.to(gpu))
    return out - target(2)
net, train_x = Net().to(gpu), ones(2, 3)
with ad.explain():
    fit(net, train_x)
""",
}


@pytest.mark.parametrize("name", QUIET)
def test_nothing_innocent_is_blamed(name: str, elsewhere: torch.device, tmp_path: Path) -> None:
    program = HEAD.replace("DEVICE", repr(str(elsewhere))) + QUIET[name]
    with pytest.raises(RuntimeError) as caught:
        run(program, tmp_path / "program.py")
    notes: list[Any] = getattr(caught.value, "__notes__", [])
    assert not any("train_x" in note or "config" in note for note in notes)


def test_a_network_placed_on_purpose_is_not_blamed(elsewhere: torch.device, tmp_path: Path) -> None:
    program = HEAD.replace("DEVICE", repr(str(elsewhere))) + (
        'net = ad.place(Net(), {"fc1": "cpu", "fc2": gpu})\n'
        "x, labels = ones(2, 3), ones(2, 2)\n"
        "with ad.explain():\n"
        "    out = net(x)\n"
        "    loss = out - labels\n"
    )
    with pytest.raises(RuntimeError) as caught:
        run(program, tmp_path / "program.py")
    assert "labels is on cpu" in caught.value.__notes__[0]
    assert ad.explain
