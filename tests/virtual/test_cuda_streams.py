"""Streams, events, and the word on synchronising operations."""

import pickle
import threading
import warnings

import pytest
import torch

from anydevice import virtual
from anydevice.virtual import events

from .own_process import run

SYNCHRONISING = "called a synchronizing CUDA operation"


@pytest.fixture(autouse=True)
def machine():
    virtual.enable()
    yield
    torch.cuda.set_sync_debug_mode(0)


def cuda(*shape):
    return torch.ones(shape, device="cuda")


def test_a_stream_has_the_priority_asked_for_within_the_range():
    assert torch.cuda.Stream.priority_range() == (0, -3)
    asked = [0, -1, -3, -7, 5]
    assert [torch.cuda.Stream(priority=p).priority for p in asked] == [0, -1, -3, -3, 0]


def test_streams_come_from_a_pool_of_32():
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert len(set(streams)) == 32
    assert streams[0] == streams[32]
    assert torch.cuda.default_stream().cuda_stream == 0


def test_an_external_stream_keeps_its_address():
    stream = torch.cuda.ExternalStream(0x7F00)
    assert stream.cuda_stream == 0x7F00
    assert torch.cuda.get_stream_from_external(0x7F00).cuda_stream == 0x7F00
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream


def test_a_stream_is_current_in_its_block_and_none_changes_nothing():
    stream, before = torch.cuda.Stream(), torch.cuda.current_stream()
    with stream:
        assert torch.cuda.current_stream() == stream
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_stream() == before


def test_a_current_stream_is_the_threads_own():
    seen = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.cuda.default_stream()]


def test_waiting_is_accepted_in_all_its_forms():
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    stream.wait_stream(torch.cuda.current_stream())
    event.record(stream)
    event.wait()
    stream.wait_event(event)
    x = cuda(3)
    x.record_stream(stream)
    stream.synchronize()
    assert stream.query()
    assert event.query()
    assert isinstance(stream.record_event(), torch.cuda.Event)


def test_an_event_is_what_torch_calls_one():
    event = torch.cuda.Event(enable_timing=True)
    assert isinstance(event, torch.Event)
    assert event.query()  # nothing to wait for yet
    assert repr(event) == "<torch.cuda.Event uninitialized>"
    assert event.device is None
    event.record()
    assert event.device == torch.device("cuda:0")
    assert repr(event).startswith("<torch.cuda.Event 0x")


def test_the_time_between_events_is_that_of_the_work():
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    cuda(300, 300) @ cuda(300, 300)
    end.record()
    torch.cuda.synchronize()
    assert 0 < start.elapsed_time(end) < 10_000
    assert end.elapsed_time(start) < 0


def test_events_without_time_or_record_have_none_between_them():
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(torch.cuda.Event())
    timed = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    with pytest.raises(ValueError, match="must be recorded before calculating elapsed time"):
        timed[0].elapsed_time(timed[1])


def test_an_events_handle_is_one_for_other_processes():
    event = torch.cuda.Event(interprocess=True)
    event.record()
    handle = pickle.loads(pickle.dumps(event.ipc_handle()))
    assert torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), handle).query()
    with pytest.raises(RuntimeError, match="object of size 64, but got 3"):
        torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), b"abc")
    with pytest.raises(RuntimeError, match="invalid argument"):
        torch.cuda.Event().ipc_handle()


def test_streams_and_events_belong_to_their_device():
    found = run("""
virtual.enable(gpus=2)
stream, event = torch.cuda.Stream(1), torch.cuda.Event()
before = torch.cuda.current_device()
with torch.cuda.stream(stream):
    inside = torch.cuda.current_device()
event.record(stream)
try:
    event.record(torch.cuda.default_stream(0))
except RuntimeError as error:
    print(json.dumps([before, inside, torch.cuda.current_device(), str(event.device), str(error)]))
""")
    text = "Event device 1 does not match recording stream's device 0."
    assert found == [0, 1, 0, "cuda:1", text]


SYNCHRONISES = {
    "item": lambda x: x.sum().item(),
    "cpu": lambda x: x.cpu(),
    "bool": lambda x: bool(x[0] > 0),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "print": str,
    "to cuda": lambda x: torch.ones(3).cuda(),
    "tensor": lambda x: torch.tensor([1.0], device="cuda"),
    "host index": lambda x: x[torch.tensor([0, 2])],
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "repeat": lambda x: x.repeat_interleave(torch.tensor([1, 2, 3], device="cuda")),
    "equal": lambda x: torch.equal(x, x),
}

DOES_NOT = {
    "add": lambda x: x + 1,
    "pinned": lambda x: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "fill by mask": lambda x: x.__setitem__(x > 0, 0),
    "device": lambda x: torch.cuda.synchronize(),
    "event": lambda x: torch.cuda.Event().synchronize(),
    "repeat to a size": lambda x: x.repeat_interleave(
        torch.ones(3, dtype=torch.int64, device="cuda"), output_size=3
    ),
}


@pytest.mark.parametrize("name", SYNCHRONISES)
def test_the_sync_debug_mode_fires_where_the_host_waits(name):
    work, x = SYNCHRONISES[name], cuda(3)
    torch.cuda.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match=SYNCHRONISING):
        work(x)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match=SYNCHRONISING):
        work(x)
    torch.cuda.set_sync_debug_mode("default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        work(x)


@pytest.mark.parametrize("name", DOES_NOT)
def test_the_sync_debug_mode_is_silent_elsewhere(name):
    x = cuda(3)
    torch.cuda.set_sync_debug_mode("error")
    DOES_NOT[name](x)
    assert torch.cuda.get_sync_debug_mode() == 2


def test_a_host_index_is_a_transfer():
    heard, x = [], cuda(3)
    with events.listening(heard.append):
        x[torch.tensor([0, 2])]
    assert [(event.kind, event.bytes) for event in heard if event.kind == "transfer"] == [
        ("transfer", 16)
    ]


def test_a_synchronised_event_is_reported_once_it_was_recorded():
    event, heard = torch.cuda.Event(), []
    with events.listening(heard.append):
        event.synchronize()
        event.record()
        event.synchronize()
        torch.cuda.synchronize()
    assert [each.op for each in heard] == ["cudaEventSynchronize", "cudaDeviceSynchronize"]
