"""A crash or a hang of one case is one failed case, and what is announced must be so."""

import pytest

from tests.conformance.cases import (
    ROUNDING,
    Case,
    KnownDifference,
    Outcome,
    as_on_a_card,
    judged,
    unmet,
)
from tests.conformance.crew import Worker
from tests.conformance.report import table

CASE = Case("forward", "add", "float32")
RIGHT = '{"tried": 1, "computed": 1, "failures": [], "seconds": 0.1}'
FAKE_WORKER = f"""
import os, sys, time
for line in sys.stdin:
    if "hang" in line: time.sleep(60)
    if "crash" in line: os.abort()
    print('{RIGHT}', flush=True)
"""


@pytest.fixture
def worker():
    worker = Worker(["-c", FAKE_WORKER], limit_s=1)
    yield worker
    worker.close()


@pytest.mark.parametrize(
    ("name", "said"), [("crash", "the process ended with -6"), ("hang", "hung for 1 s")]
)
def test_a_worker_that_dies_costs_one_case_and_is_replaced(worker, name, said):
    assert worker.judge(CASE, None).right
    assert said in worker.judge(Case("forward", name, "float32"), None).failures[0]
    assert worker.judge(CASE, None).right


def outcome(*failures, computed=1, case=CASE):
    return Outcome(case, 1, computed, failures)


def known(**more):
    return KnownDifference(["add"], ["forward"], "a reason", **more)


def test_an_unannounced_failure_is_new():
    assert judged([outcome("no")], []) == ([outcome("no")], [], [])


def test_an_announced_failure_is_known_and_an_announced_success_is_reported():
    assert judged([outcome("no")], [known()]) == ([], [outcome("no")], [])
    assert judged([outcome()], [known()]) == ([], [], [CASE])


def test_an_entry_about_rounding_excuses_nothing_else():
    mild, wrong = outcome("1 differs" + ROUNDING), outcome("1 differs" + ROUNDING, "a crash")
    assert judged([mild, wrong], [known(rounding=True)]) == ([wrong], [mild], [])


def test_an_entry_for_another_dtype_excuses_nothing():
    assert judged([outcome("no")], [known(dtypes=["float64"])])[0]


def test_an_entry_that_names_no_case_is_reported():
    assert unmet([Case("forward", "sub", "float32")], [known()]) == ["add"]


def test_a_known_failure_counts_as_a_failure_and_an_empty_case_not_at_all():
    text, enough = table([outcome("no"), outcome(), outcome(computed=0)])
    assert "50.00 %" in text
    assert "1 of 2" in text
    assert not enough


def test_what_a_card_does_too_is_told_apart():
    failed = outcome("no")
    assert as_on_a_card([failed], [known(as_on_a_card=True)]) == [failed]
    assert as_on_a_card([failed], [known()]) == []
