"""A recording of a card, here four cases written by hand, is run again and compared."""

import gzip
import json

import pytest

from tests.conformance.recording import compare, kind, nearly, same

MISMATCH = (
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
)
COLUMNS = ["allocated_bytes", "reserved_bytes", "num_alloc_retries"]
RECORDING = {
    "environment": {"name": "NVIDIA H100 80GB HBM3", "torch": "2.13.0"},
    "prelude": "import torch, torch.nn as nn\nG = torch.device('cuda', 0)",
    "errors_setup": "c = torch.ones(2, 3); g = torch.ones(2, 3, device=G)",
    "sections": {
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


@pytest.mark.parametrize(
    ("card", "name"),
    [("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("NVIDIA A100-SXM4-80GB", "a100")],
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
