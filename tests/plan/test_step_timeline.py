"""One step as lanes of spans: what the host and each stream do when."""

import pytest

from anydevice.devices.catalogue import card
from anydevice.plan.time.predict import predict
from anydevice.plan.time.spans import HOST, Span, merged, step_timeline
from anydevice.plan.time.work import HostTime, Op, Transfer, Wait, Work


def kernel(megabytes, stream=0, reads=(), writes=()):
    sizes = {"bytes": megabytes * 1e6, "kernels": 1, "tensors": 1}
    return Op("add", 0, stream, "float32", (), backward=False, reads=reads, writes=writes, **sizes)


def test_the_lanes_add_up_to_what_the_prediction_says():
    work = Work([HostTime(0.01, "data"), *[kernel(300) for _ in range(20)]])
    found = step_timeline(work, card("t4"))
    predicted = predict(work, card("t4"))
    assert list(found.lanes) == [HOST, "cuda:0"]
    last = found.lanes["cuda:0"][-20:]
    assert sum(span.seconds for span in last) == pytest.approx(predicted.busy)
    fetching = [span for span in found.lanes[HOST] if span.kind == "data"]
    assert sum(span.seconds for span in fetching) == pytest.approx(0.01)
    assert found.seconds >= predicted.seconds * 0.99


def test_a_host_that_waits_is_seen_to_wait():
    for waits in (Wait(0, "item()"), Transfer(4, 0, -1, False, True)):
        found = step_timeline(Work([kernel(3000), waits]), card("t4"))
        waiting = [span for span in found.lanes[HOST] if span.kind == "wait"]
        busy = [span for span in found.lanes["cuda:0"] if span.kind == "kernel"]
        assert waiting[-1].seconds > 0.9 * busy[-1].seconds
        assert waiting[-1].end >= busy[-1].end
    assert found.lanes["cuda:0"][-1].text == "copy to the host"


def test_each_stream_has_a_lane():
    work = Work([kernel(300, writes=(1,)), kernel(300, stream=7, writes=(2,))])
    found = step_timeline(work, card("h100"))
    one, other = found.lanes["cuda:0"][-1], found.lanes["cuda:0 stream 7"][-1]
    assert one.begin < other.end
    assert other.begin < one.end


def test_a_picture_has_no_more_spans_than_it_can_show():
    spans = [Span(i, i + 0.9, "kernel", f"op {i}") for i in range(10_000)]
    drawn = merged(spans, 10_000 / 1500)
    assert len(drawn) <= 1500
    assert (drawn[0].begin, drawn[-1].end) == (0, 9999.9)
    assert sum(1 + span.more for span in drawn) == 10_000
