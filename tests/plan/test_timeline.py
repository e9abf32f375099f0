"""Memory over the steps: a picture, a page in a real browser, a file for PyTorch's viewer."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.plan.answer import Plan
from anydevice.plan.command import main
from anydevice.plan.hollow.blocks import Block, peak
from anydevice.plan.page.page import write_report
from anydevice.plan.page.timeline import snapshot, timeline, write_snapshot

from ..browsing import browsing
from ..forked import python

MIB = 1 << 20


def train() -> None:
    network = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        network(torch.rand(64, 512, device="cuda")).sum().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return ad.plan(train, ["t4", "h100"])


def block(start: int, end: int | None, size: int, category: str = "inputs") -> Block:
    return Block(start, end, size, 0, category, "layer.0", "/here/train.py:7", 512 * start)


def test_the_picture_adds_up_what_is_alive() -> None:
    blocks = [block(0, None, 5, "parameters"), block(1, 3, 7), block(2, 4, 1, "parameters")]
    found = timeline(blocks)
    assert found["categories"] == ["parameters", "inputs"]
    assert found["events"] == [0, 1, 2, 3, 4]
    assert found["bytes"] == [[5, 0], [5, 7], [6, 7], [6, 0], [5, 0]]


def test_no_peak_is_lost_where_many_events_share_a_point() -> None:
    spikes = [b for i in range(1000) for b in (block(2 * i, 2 * i + 1, 1 + (i == 617) * 99),)]
    found = timeline([block(0, None, 3), *spikes], points=10)
    assert len(found["events"]) == 10
    assert max(map(sum, found["bytes"])) == 103 == peak([block(0, None, 3), *spikes]).bytes


@pytest.mark.long
def test_pytorchs_own_viewer_reads_the_snapshot(plan: Plan, tmp_path: Path) -> None:
    write_snapshot(tmp_path / "memory.pickle", plan["t4"].run.blocks)
    viewer = ("-m", "torch.cuda._memory_viz")
    read = python(*viewer, "trace", tmp_path / "memory.pickle")
    assert "4.0MiB" in read.stdout  # the weights of the first layer
    page = (tmp_path / "memory.pickle", "-o", tmp_path / "memory.html")
    assert python(*viewer, "trace_plot", *page).returncode == 0
    assert (tmp_path / "memory.html").stat().st_size > 10_000


def test_the_snapshot_has_each_allocation_with_its_line_and_its_free() -> None:
    written = pickle.loads(pickle.dumps(snapshot([block(1, 4, MIB), block(2, None, 2 * MIB)])))
    entries = written["device_traces"][0]
    assert [entry["action"] for entry in entries] == [
        *("alloc", "alloc", "free_requested", "free_completed")
    ]
    frame = entries[0]["frames"][0]
    assert frame == {"name": "inputs of layer.0", "filename": "/here/train.py", "line": 7}


def test_the_page_shows_each_card_in_a_real_browser(plan: Plan, tmp_path: Path) -> None:
    page = write_report(plan, tmp_path / "plan.html")
    with browsing(tmp_path / "profile") as browser:
        browser.open(page)
        assert browser.texts("h1") == ["train"]
        assert [text.split("\n")[0] for text in browser.texts("section > h2")] == [
            "Tesla T4fits", "NVIDIA H100 80GB HBM3fits",
        ]  # fmt: skip
        shown = " ".join(browser.texts("svg text"))
        assert "step 1" in shown
        assert "step 3" in shown
        assert "cuda:0" in shown  # a lane of the step
        side = browser.texts("section:first-child th")
        assert side[-2:] == ["Tesla T4", "NVIDIA H100 80GB HBM3"]
        assert not browser.complaints()
        assert browser.asked() == [page.as_uri()]


def test_files_that_cannot_be_written_are_said_before_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    with pytest.raises(UsageError, match=r"expected a folder for no/plan.html, got none"):
        main(["--report", "no/plan.html", "train.py"])
    with pytest.raises(UsageError, match=r"expected --calibrate without a program, got train"):
        main(["--calibrate", "train.py"])
