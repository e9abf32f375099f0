"""A recording of a card, here some cases written by hand, is run again and compared."""

import gzip
import json
import re

import pytest

from tests.conformance import recording
from tests.conformance.recording import compare, kind, nearly, same
from tests.conformance.steps import Difference, summary

MISMATCH = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)
COLUMNS = ["allocated_bytes", "reserved_bytes", "num_alloc_retries"]
PRELUDE = """
import torch, torch.nn as nn
G = torch.device('cuda', 0)
OPT = {"sgd": lambda p: torch.optim.SGD(p, 0.1)}
def linear(width):
    net = nn.Linear(width, width, device=G)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    def step():
        loss = net(torch.ones(8, width, device=G)).sum()
        opt.zero_grad(); loss.backward(); opt.step(); return loss
    return step
"""
RECORDING = {
    "environment": {"name": "NVIDIA H100 80GB HBM3", "torch": "2.13.0"},
    "prelude": PRELUDE,
    "errors_setup": "c = torch.ones(2, 3); g = torch.ones(2, 3, device=G)",
    "sections": {
        "ops": {
            "torch.relu(torch.ones((), device=G))": {
                "forward": ["aten.ones.default", "aten.relu.default"],
                "backward": [],
            },
            "second step of OPT['sgd'] over three parameters": {
                "forward": ["aten._foreach_add_.Scalar", "recorded wrongly, on purpose"],
            },
        },
        "steps": {
            "linear(1 << 10)": {
                "base": 0,
                "steps_peak_allocated_reserved_and_left": [[76_000_000, 90 << 20, 75_000_000]] * 3,
                "device_bytes": 120 << 20,
                "step_s": 1e-4,
            },
            "linear(1 << 20)": {"oom": "CUDA out of memory. Tried to allocate 4096.00 GiB."},
            "linear(1 << 4)": {"oom": "CUDA out of memory: recorded wrongly, on purpose."},
        },
        "errors": {
            "c + g": {"type": "RuntimeError", "text": MISMATCH},
            "g.sum().item()": {"ok": "7.0"},
        },
        "memory": {
            "trace 1": {
                "trace": [[0, 100], [1, 1000], [0, 0]],
                "columns": COLUMNS,
                "after": [[512, 2 << 20, 0], [1536, 2 << 20, 0], [1024, 2 << 20, 0]],
                "peaks": {"allocated": 1536, "reserved": 2 << 20},
            }
        },
        "sync": {"g.sum().item()": {"synchronises": 1}, "g + g": {"synchronises": 0}},
    },
}


def test_each_section_says_how_many_cases_agree(tmp_path, capsys):
    path = tmp_path / "h100.json.gz"
    path.write_bytes(gzip.compress(json.dumps(RECORDING).encode()))
    compare(path)
    said = capsys.readouterr().out
    assert "errors: 1 of 2 agree" in said  # the second is recorded wrongly, on purpose
    assert "here {'ok': '6.0'}" in said
    assert "memory: 1 of 1 agree" in said
    assert "sync: 2 of 2 agree" in said
    assert "ops: 1 of 2 agree" in said
    assert "steps: 2 of 3 agree" in said
    for figure in ("allocated", "reserved", "device", "time"):
        assert re.search(rf"  {figure}: median [\d.]+%, 95th percentile [\d.]+%, worst ", said)


def test_errors_are_told_by_their_median_their_95th_percentile_and_the_worst():
    found = [Difference(str(i), "time", 100.0, 100.0 + i) for i in range(1, 101)]
    [line] = summary(found)
    assert line == (
        "  time: median 50.5%, 95th percentile 95.0%, worst 100.0% (100: card 100, here 200)"
    )


def test_without_a_recording_that_is_said(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(recording, "REFERENCE", tmp_path)
    monkeypatch.setattr("sys.argv", ["recording"])
    recording.main()
    assert "No recording of a real card" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("card", "name"),
    [("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("NVIDIA A100-SXM4-80GB", "a100-80gb")],
)
def test_a_card_is_found_in_the_catalogue_by_its_own_name(card, name):
    assert kind(card) == name


def test_synchronising_twice_as_often_as_the_card_is_synchronising_all_the_same():
    assert same("sync", {"synchronises": 1, "outcome": "ran"}, {"synchronises": 2})
    assert not same("sync", {"synchronises": 1}, {"synchronises": 0})


def test_random_numbers_may_be_right_but_for_rounding():
    card = {"first": [0.5, 0.25], "last": [1.0]}
    assert nearly(card, {"first": [0.5000001, 0.25], "last": [1.0]})
    assert not nearly(card, {"first": [0.5, 0.26], "last": [1.0]})
