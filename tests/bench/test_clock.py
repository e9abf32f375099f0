import time

import pytest
import torch

from anydevice.bench import clock
from anydevice.bench.clock import Clock, TooSlow


class Queue:
    """A device that comes back at once and works on: what a GPU's clock has to see through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.seconds, self.ready = seconds, 0.0
        self.clock = Clock(torch.device("cpu"))
        monkeypatch.setattr(self.clock, "wait", self.wait)

    def work(self) -> None:
        self.ready = max(self.ready, time.perf_counter()) + self.seconds

    def wait(self) -> None:
        time.sleep(max(0.0, self.ready - time.perf_counter()))


def test_a_device_that_works_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(monkeypatch, 0.05)
    timing = queue.clock.time(queue.work)
    assert 0.05 <= timing.low <= timing.seconds <= timing.high
    assert timing.unsynchronised < timing.seconds


def test_the_first_calls_are_not_counted() -> None:
    calls = []

    def slow_at_first() -> None:
        calls.append(None)
        if len(calls) == 1:
            time.sleep(5 * clock.WARM_UP)

    timing = Clock(torch.device("cpu")).time(slow_at_first)
    assert timing.repeats == len(calls) - 1 == clock.MOST
    assert timing.high < 5 * clock.WARM_UP


def test_work_that_nobody_waits_for_is_called_once() -> None:
    calls = []

    def work() -> None:
        calls.append(None)
        time.sleep(1.5 * clock.WARM_UP)

    with pytest.raises(TooSlow) as caught:
        Clock(torch.device("cpu")).time(work, patience=clock.WARM_UP)
    assert len(calls) == 1
    assert caught.value.seconds >= 1.5 * clock.WARM_UP


@pytest.mark.parametrize(("touched", "flushes"), [(1000, clock.FEWEST), (10**12, 0), (0, 0)])
def test_the_cache_is_emptied_where_it_could_hold_the_data(
    monkeypatch: pytest.MonkeyPatch, touched: int, flushes: int
) -> None:
    monkeypatch.setattr(clock, "MOST", clock.FEWEST)
    here = Clock(torch.device("cpu"))
    flushed = []
    monkeypatch.setattr(here, "_flush", lambda: flushed.append(None))
    here.time(lambda: None, touched=touched)
    assert len(flushed) == flushes
