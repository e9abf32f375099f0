"""Training programs of many kinds are planned as they are, and nothing is left of it."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.plan.hollow.program import Program
from anydevice.plan.hollow.run import HollowRun
from anydevice.plan.planning import plan

LAYER = """
import torch
from torch import nn
import torch.nn.functional as F
network = nn.Linear(100, 100, device="cuda")
optimizer = torch.optim.Adam(network.parameters())
def loss():
    return network(torch.ones(8, 100, device="cuda")).sum()
"""
PROGRAMS = {
    "accumulates": """
for _ in range(9):
    for _ in range(4):
        (loss() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "scales": """
scaler = torch.amp.GradScaler("cuda")
for _ in range(9):
    with torch.autocast("cuda"):
        now = loss()
    optimizer.zero_grad()
    scaler.scale(now).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "is traced": """
traced = torch.jit.trace(network, torch.ones(8, 100, device="cuda"))
for _ in range(9):
    optimizer.zero_grad()
    traced(torch.ones(8, 100, device="cuda")).sum().backward()
    optimizer.step()
""",
    "has two optimizers": """
critic = nn.Linear(100, 1).to("cuda")
other = torch.optim.RMSprop(critic.parameters())
for _ in range(9):
    for each in (optimizer, other):
        each.zero_grad()
        critic(network(torch.ones(8, 100, device="cuda"))).mean().backward()
        each.step()
""",
    "swallows what ends it": """
for _ in range(3):
    try:
        while True:
            loss().backward()
            optimizer.step()
    except:
        pass
""",
    "takes closures": """
lbfgs = torch.optim.LBFGS(network.parameters(), max_iter=2)
def closure():
    lbfgs.zero_grad()
    now = loss()
    now.backward()
    return now
for _ in range(9):
    lbfgs.step(closure)
""",
    "loads with workers": """
data = torch.utils.data.TensorDataset(torch.ones(64, 100), torch.zeros(64).long())
loader = torch.utils.data.DataLoader(data, 8, num_workers=2, pin_memory=True)
for x, y in loader:
    now = F.cross_entropy(network(x.to("cuda", non_blocking=True)), y.cuda())
    optimizer.zero_grad()
    now.backward()
    optimizer.step()
""",
    "checkpoints blocks": """
from torch.utils.checkpoint import checkpoint
deep = nn.Sequential(network, nn.Tanh(), nn.Linear(100, 100, device="cuda"))
for _ in range(9):
    now = checkpoint(deep, torch.ones(8, 100, device="cuda"), use_reentrant=False).sum()
    optimizer.zero_grad()
    now.backward()
    optimizer.step()
""",
}


def planned(folder: Path, text: str) -> HollowRun:
    path = folder / "train.py"
    path.write_text(text)
    return plan(Program((str(path),)), "t4").verdicts[0].run


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_that(kind: str, tmp_path: Path) -> None:
    run = planned(tmp_path, LAYER + PROGRAMS[kind])
    assert run.steps >= 3  # more only where the end is swallowed
    assert run.fits
    weights = 4 * (100 * 100 + 100)
    assert run.tensors > 2 * weights
    assert run.work


def test_a_module_is_planned_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    text = LAYER + "assert __name__ == '__main__'\n" + PROGRAMS["accumulates"]
    (tmp_path / "package/train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    answer = plan(Program(("-m", "package.train", "--x")), "t4")
    assert answer.program == "package.train"
    assert answer.fits


def test_what_a_program_changes_stays_in_its_process(tmp_path: Path) -> None:
    changed = "import sys\nsys.path.append('nowhere')\n"
    planned(tmp_path, changed + LAYER + PROGRAMS["accumulates"])
    assert "nowhere" not in sys.path
    assert "cuda" not in str(torch.empty(()).device)


def test_a_network_outside_of_the_function_is_not_touched() -> None:
    network = nn.Linear(3, 3)
    before = network.weight.clone()

    def train() -> None:
        optimizer = torch.optim.SGD(network.to("cuda").parameters(), 0.1)
        while True:
            network(torch.ones(2, 3, device="cuda")).sum().backward()
            optimizer.step()

    assert ad.plan(train, gpus=["t4", "l4"]).fits  # type: ignore[operator]
    assert network.weight.device.type == "cpu"
    assert torch.equal(network.weight, before)


def test_a_trial_neither_begins_at_a_checkpoint_nor_writes_one(tmp_path: Path) -> None:
    data = torch.rand(64, 3), torch.zeros(64).long()

    def trial(device: str) -> ad.Trial:
        torch.manual_seed(0)
        made = ad.Trial(nn.Linear(3, 2), "adam", "cross_entropy").to(device)
        return made.with_generators(data, batch_size=8).checkpoint(tmp_path / "run", every=1)

    trial("cpu").run(1, verbose=False)
    there = sorted(path.name for path in (tmp_path / "run").iterdir())
    answer = ad.plan(lambda: trial("cuda").run(1, verbose=False), "t4")  # type: ignore[operator]
    assert answer.verdicts[0].run.steps == 3
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == there


def test_a_program_that_catches_its_running_out_of_memory_does_not_fit(tmp_path: Path) -> None:
    run = planned(
        tmp_path,
        LAYER
        + """
try:
    torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
"""
        + PROGRAMS["accumulates"],
    )
    assert not run.fits
    assert run.allocated > 30 << 30


def test_a_program_finds_itself_and_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "neighbour.py").write_text("width = 100\n")
    text = "import os, sys, neighbour\nassert os.path.isabs(__file__)\n"
    text += "assert sys.argv[1:] == ['--x']\n" + LAYER + PROGRAMS["accumulates"]
    (tmp_path / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert plan(Program(("train.py", "--x")), "t4").fits
