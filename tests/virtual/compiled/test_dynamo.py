"""Dynamo on virtual GPUs: streams, events, devices and random numbers in compiled programs."""

from typing import Any

import pytest

from tests.virtual.own_process import run

pytestmark = pytest.mark.long
PROGRAM = """
from torch import nn
import torch._dynamo  # before there are GPUs
virtual.enable(2)
BACKEND = "aot_eager"
x = torch.arange(3.0, device="cuda")
other, event = torch.cuda.Stream(), torch.cuda.Event()

def on_a_stream(x, stream=other):
    with torch.cuda.stream(stream):
        return x + 1

def on_a_new_stream(x):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x + 1
    torch.cuda.current_stream().wait_stream(stream)
    return y * 2

def with_events(x):
    mine = torch.cuda.Event()
    y = x + 1
    mine.record()
    event.record()
    event.wait()
    mine.synchronize()
    return y if event.query() and event == event else x

def on_another_device(x):
    with torch.cuda.device(x.device.index + 1):
        return x + 1

def in_half_precision(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return x[:, None] @ x[None, :]

def drawn(x):
    return torch.rand_like(x) + torch.randn(3, device="cuda")

def with_a_constant(x):
    return torch.where(x > 1, x, torch.tensor(5.0, device="cuda"))

def with_memory_read(x):
    torch.cuda.synchronize()
    return x + (torch.cuda.memory_allocated() > 0)

def with_its_state_put_back(x):
    state = torch.cuda.get_rng_state()
    first = torch.rand_like(x)
    torch.cuda.set_rng_state(state)
    return first == torch.rand_like(x)

def with_the_cards_properties(x):
    card = torch.cuda.get_device_properties(x.device)
    return x * card.multi_processor_count + card.major

def conjugated(x):
    return torch.fft.ifft(x)

def negated(x):
    return torch.fft.ifft(x).imag

WHOLE = (conjugated, negated, with_the_cards_properties, on_a_stream, on_a_new_stream, with_events,
         on_another_device, in_half_precision, drawn)
IN_PARTS = (with_a_constant, with_memory_read, with_its_state_put_back)

def agrees(function, whole):
    torch._dynamo.reset()
    results = []
    for call in (function, torch.compile(function, backend=BACKEND, fullgraph=whole)):
        torch.manual_seed(0)
        results.append(call(x))
    return torch.equal(*results)

def broken_by(function):
    torch._dynamo.reset()
    said = torch._dynamo.explain(function)(x)
    files = {frame.filename for each in said.break_reasons for frame in each.user_stack}
    return said.graph_break_count > 0 and not any("anydevice/virtual" in name for name in files)

def answers():
    seen = {each.__name__: agrees(each, each in WHOLE) for each in (*WHOLE, *IN_PARTS)}
    return seen | {"broken": [broken_by(each) for each in IN_PARTS[1:]]}
"""


def holds(seen: dict[str, Any]) -> None:
    assert seen.pop("broken") == [True, True]
    assert [name for name, same in seen.items() if not same] == []


def test_streams_events_devices_and_random_numbers_are_those_of_the_program() -> None:
    holds(run(PROGRAM + "print(json.dumps(answers()))", ANYDEVICE_COMPILE=""))


def test_the_same_with_inductors_code() -> None:
    program = PROGRAM.replace("aot_eager", "inductor")
    holds(run(program + "print(json.dumps(answers()))", ANYDEVICE_COMPILE=""))
