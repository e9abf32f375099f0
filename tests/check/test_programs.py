"""Programs with one mistake each, and twins without it that look alike."""

import re
import shutil
from pathlib import Path

import pytest

from anydevice.check import failures
from anydevice.check.checking import checked
from anydevice.check.report import Report
from anydevice.check.rules import RULES
from anydevice.check.run import Job, run
from anydevice.check.settings import Settings
from anydevice.plan.cluster.world import World
from anydevice.plan.hollow.program import Program
from tests.check.programs import names, pair

PAGES = Path(__file__).parents[2] / "docs" / "check"
QUICK = ("clipped_scaled", "dropped_move", "item_each_step", "losses_kept")


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change may be torch.compile."""
    monkeypatch.delenv("ANYDEVICE_COMPILE", raising=False)


def report_of(program: str, folder: Path, how: str = "") -> Report:
    """What is found in a program."""
    file = folder / "train.py"
    file.write_text(program)
    world = World(1, 2) if how == "2 ranks" else None
    settings = Settings(gpus=("t4", "h100"))
    return checked(Program((str(file),)), settings, world=world, portable=how == "portable")


def look_at(name: str, folder: Path) -> None:
    """The mistake is found at its line, and nothing is found in the twin."""
    both = pair(name)
    found = report_of(both.bad, folder, both.how)
    places = [(one.rule, one.site.line) for one in (*found.findings, *found.hints)]
    assert any(r == both.rule and both.line in (None, line) for r, line in places), places
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    good = report_of(both.good, folder, both.how)
    assert good.findings == []
    assert both.rule not in {hint.rule for hint in good.hints}


@pytest.mark.parametrize("name", QUICK)
def test_a_mistake_is_found_and_its_twin_is_clean(name: str, tmp_path: Path) -> None:
    look_at(name, tmp_path)


def test_each_rule_has_a_page_with_a_program_that_is_tested_here() -> None:
    rules = [rule.name for rule in RULES] + list(failures.RULES)
    programs = {(both.rule, both.bad, both.good) for both in map(pair, names())}
    index = (PAGES / "index.md").read_text()
    for rule in rules:
        text = (PAGES / f"{rule}.md").read_text()
        bad, good = re.findall(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        assert (rule, bad, good) in programs, rule
        assert f"[{rule}]({rule}.md)" in index
    assert len(list(PAGES.glob("*.md"))) == len(rules) + 1


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in names() if name not in QUICK])
def test_each_mistake_is_found_and_its_twin_is_clean(name: str, tmp_path: Path) -> None:
    look_at(name, tmp_path)


PRICED = (
    *("cache_emptied", "channels_first", "made_on_the_host", "one_kernel_each", "sent_again"),
    *("bucket_copies", "einsum_attention", "launched_one_by_one", "made_a_line_before"),
    "small_buckets",
)


@pytest.mark.long
@pytest.mark.parametrize("name", PRICED)
def test_what_a_finding_costs_is_what_the_changed_program_saves(name: str, tmp_path: Path) -> None:
    both = pair(name)
    bad, good = (report_of(text, tmp_path, both.how) for text in (both.bad, both.good))
    all_found = (*bad.findings, *bad.small, *bad.hints)
    (cost,) = (one.seconds for one in all_found if one.rule == both.rule)
    saved = bad.step["h100"] - good.step["h100"]
    assert cost["h100"] == pytest.approx(saved, rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["outputs_kept", "activations_kept"])
def test_what_a_finding_takes_is_what_the_changed_program_frees(name: str, tmp_path: Path) -> None:
    both, file = pair(name), tmp_path / "train.py"
    peaks = []
    for text in (both.bad, both.good):
        file.write_text(text)
        found = run(Job(Program((str(file),)), "train.py", ("t4", "h100")))
        peaks.append(found.peak)
        taken = [one.bytes for one in found.findings if one.rule == both.rule]
        if text == both.bad:
            (size,) = taken
    assert size == pytest.approx(peaks[0] - peaks[1], rel=0.1)


HIDDEN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        image = torch.randn(3, 64, 64)
        for _ in range(40):
            image = image.sin()
        return image, index % 10


model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.AdaptiveAvgPool2d(1),
                      nn.Flatten(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), 64, pin_memory=True):
    x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.long
def test_what_is_hidden_behind_another_mistake_is_found_too(tmp_path: Path) -> None:
    report = report_of(HIDDEN, tmp_path)
    by_rule = {finding.rule: finding for finding in report.findings}
    assert set(by_rule) == {"waits-for-data", "no-autocast"}
    autocast = by_rule["no-autocast"]
    assert autocast.seconds["t4"] < 1e-3 < autocast.together["t4"]
    assert report.fixed["t4"] < report.step["t4"] / 2
