"""Ranks that meet are simulated together: who waits for whom, and how long."""

import pytest

from anydevice.devices.catalogue import card
from anydevice.plan.cluster.together import together
from anydevice.plan.time.rates import Rates
from anydevice.plan.time.work import Exchange, Op, Product, Work

RATES = Rates(card("h100"), measured={})
LINK = 1e-3  # seconds of each collective


class Links:
    """Everything takes as long."""

    def seconds(self, exchange: Exchange, rates: Rates) -> float:
        return LINK


def compute(writes: int, reads: int = 0, *, times: int = 1) -> list[Op]:
    """Kernels of some milliseconds."""
    product = Product(1, 8192, 8192, 8192)
    one = Op(
        *("mm", 0, 0, "bfloat16", (product,), 3 * 8192 * 8192 * 2, 1, False, 0),
        reads=(reads,) if reads else (),
        writes=(writes,),
    )
    return [one] * times


def pair(name: str, peer: int, storage: int) -> Exchange:
    ranks = (0, 1)
    touched = (storage,)
    return Exchange(name, 0, 0.0, touched, touched, ranks=ranks, size=1, group="pp", peer=peer)


def reduced(storage: int, *, waits: bool = False) -> Exchange:
    touched = (storage,)
    return Exchange(
        "all_reduce", 0, 0.0, touched, touched, ranks=(0, 1), size=1, group="dp", waits=waits
    )


def test_a_receiver_waits_for_what_is_sent() -> None:
    first = Work([*compute(1, times=4), pair("send", 1, 1), *compute(2, times=4)])
    second = Work([pair("recv", 0, 7), *compute(3, 7)])
    found = together({0: first, 1: second}, RATES, Links())
    assert found.waited[0] == 0
    assert found.waited[1] > 0
    assert found.seconds == pytest.approx(together({0: first}, RATES, Links()).seconds, rel=0.05)


def test_a_pipelines_bubble_is_what_the_stages_wait() -> None:
    def there_and_back(to: int, first: bool) -> Work:
        sends, receives = pair("send", to, 1), pair("recv", to, 2)
        forward, backward = compute(1, 0 if first else 2), compute(3, 2)
        if first:
            return Work([*forward, sends, receives, *backward])
        return Work([receives, *compute(1, 2), *backward, sends])

    found = together({0: there_and_back(1, True), 1: there_and_back(0, False)}, RATES, Links())
    busy = found.busy[0] + found.busy[1]
    assert found.seconds == pytest.approx(busy + 2 * LINK, rel=0.1)


def test_all_ranks_begin_a_collective_with_the_last_of_them() -> None:
    quick = Work([*compute(1), reduced(1, waits=True), *compute(2, 1)])
    slow = Work([*compute(1, times=9), reduced(1, waits=True), *compute(2, 1)])
    found = together({0: quick, 1: slow}, RATES, Links())
    assert found.seconds == pytest.approx(found.busy[1] + LINK, rel=0.05)
    assert found.waited[0] == pytest.approx(found.busy[1] - found.busy[0], rel=0.05)


def test_what_nobody_reads_overlaps_with_computing() -> None:
    hidden = Work([*compute(1), reduced(1), *compute(2, times=4)])
    shown = Work([*compute(1), reduced(1), *compute(2, 1, times=4)])
    quick, slow = (together({0: work}, RATES, Links()).seconds for work in (hidden, shown))
    assert slow == pytest.approx(quick + LINK, rel=0.05)


def test_ranks_that_wait_for_each_other_come_to_an_end() -> None:
    both = {
        rank: Work([pair("recv", 1 - rank, 1), *compute(2, 1), pair("send", 1 - rank, 2)])
        for rank in (0, 1)
    }
    assert together(both, RATES, Links()).seconds > 0


def test_a_peer_that_is_not_played_comes_when_this_rank_does() -> None:
    alone = Work([pair("recv", 5, 1), *compute(2, 1)])
    assert together({0: alone}, RATES, Links()).waited == {0: 0}
