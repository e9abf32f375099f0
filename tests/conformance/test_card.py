"""A slice of what PyTorch's CUDA build refuses: whole, it is a part of `make conformance`."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.conformance.card.__main__ import right

EVERY = {"devices": 30, "modules": 12, "dtypes": 10, "alerts": 4}


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    written = tmp_path_factory.mktemp("card") / "counts.json"
    program = (
        "import sys; from tests.conformance.card import __main__ as card\n"
        f"every = {EVERY}\n"
        "whole = card.rows\n"
        "card.rows = lambda part, _: whole(part, every[part])\n"
        f"sys.argv[1:] = ['--show', '--json', {str(written)!r}]\n"
        "sys.exit(card.main())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    print(run.stdout, run.stderr)
    return json.loads(written.read_text())


@pytest.mark.parametrize("part", EVERY)
def test_what_a_card_refuses_is_refused_and_what_it_runs_runs(counts, part):
    assert counts[part].get("refused, and runs here", 0) == 0
    assert right(Counter(counts[part])) >= 0.97


@pytest.mark.parametrize("part", ["devices", "modules"])
def test_the_texts_are_pytorchs(counts, part):
    assert counts[part]["refused, with the same text"] >= 20
    assert counts[part].get("refused, with another text", 0) == 0
