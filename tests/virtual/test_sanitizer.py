"""torch.cuda._sanitizer: races between streams are found without a GPU; what waits is no race."""

from .own_process import run

PROGRAM = """
import torch.cuda._sanitizer as csan
csan.enable_cuda_sanitizer()  # before the first use of CUDA
virtual.enable(2, "a100-40gb")
cases, cuda = dict(), torch.cuda

def case(work):
    cuda.synchronize()
    cuda.synchronize(1)
    try:
        work()
        cases[work.__name__] = "fine"
    except csan.CUDASanitizerErrors as found:
        cases[work.__name__] = "race"
        text = str(found.errors[0])
        assert "CSAN detected a possible data race on tensor with data pointer" in text, text
        assert "<string>" in text, text  # the lines of this program

side = cuda.Stream()
main = cuda.current_stream()
"""

RACES = """
@case
def missing_wait():
    x = torch.zeros(4, device="cuda")
    with cuda.stream(side):
        x.add_(1)

@case
def read_before_the_other_stream_is_done():
    x = torch.zeros(4, device="cuda")
    side.wait_stream(main)
    with cuda.stream(side):
        x.add_(1)
    x.mul(2)

@case
def event_recorded_too_early():
    x = torch.zeros(4, device="cuda")
    event = cuda.Event()
    event.record()
    x.add_(1)
    side.wait_event(event)
    with cuda.stream(side):
        x.mul(2)

@case
def used_after_it_was_freed():
    x = torch.zeros(4, device="cuda")
    address = x.data_ptr()
    side.wait_stream(main)
    with cuda.stream(side):
        y = x * 2
    del x
    z = torch.empty(4, device="cuda")
    assert z.data_ptr() == address
    z.fill_(7)

@case
def copied_while_it_is_computed():
    x = torch.zeros(4, device="cuda")
    with cuda.stream(side):
        x.cpu()
"""

CORRECT = """
@case
def waits():
    x = torch.zeros(4, device="cuda")
    side.wait_stream(main)
    with cuda.stream(side):
        x.add_(1)
    main.wait_stream(side)
    x.mul(2)

@case
def waits_for_an_event():
    x = torch.zeros(4, device="cuda")
    event = main.record_event()
    side.wait_event(event)
    with cuda.stream(side):
        x.add_(1)
        done = side.record_event()
    done.synchronize()
    x.mul(2)

@case
def the_host_waits():
    x = torch.zeros(4, device="cuda")
    cuda.synchronize()
    with cuda.stream(side):
        x.add_(1)
        x.sum().item()
    x.mul(2)

@case
def recorded_stream():
    x = torch.zeros(4, device="cuda")
    side.wait_stream(main)
    with cuda.stream(side):
        y = x * 2
    x.record_stream(side)
    del x
    torch.empty(4, device="cuda").fill_(7)

@case
def freed_after_the_other_stream_was_waited_for():
    x = torch.zeros(4, device="cuda")
    side.wait_stream(main)
    with cuda.stream(side):
        y = x * 2
    main.wait_stream(side)
    del x
    torch.empty(4, device="cuda").fill_(7)

@case
def training():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    layers.cuda()
    optimizer = torch.optim.Adam(layers.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        layers(torch.randn(3, 4).cuda()).square().mean().backward()
        optimizer.step()

@case
def backward_of_two_streams():
    x = torch.ones(4, device="cuda", requires_grad=True)
    side.wait_stream(main)
    with cuda.stream(side):
        y = x * 2
    main.wait_stream(side)
    (y * x).sum().backward()
    x.grad.sum()

@case
def two_gpus():
    x = torch.zeros(4, device="cuda:0")
    other = cuda.Stream(1)
    with cuda.device(1), cuda.stream(other):
        y = x.to("cuda:1") + 1
        z = y.to("cuda:0")
    main.wait_stream(other)
    z.add_(1)
    x.add_(1)
"""


def test_races_are_found_and_programs_that_wait_are_not_reported():
    seen = run(PROGRAM + RACES + CORRECT + "print(json.dumps(cases))")
    assert {name for name, found in seen.items() if found == "race"} == {
        "missing_wait",
        "read_before_the_other_stream_is_done",
        "event_recorded_too_early",
        "used_after_it_was_freed",
        "copied_while_it_is_computed",
    }
    assert len(seen) == 13


def test_each_callback_of_gpu_trace_is_called_as_on_a_card():
    seen = run(
        """
virtual.enable(2, "a100-40gb")
import torch.cuda._gpu_trace as gpu_trace
torch._C._activate_gpu_trace()
told = []
for name in vars(gpu_trace):
    if name.startswith("register_callback_for_"):
        kind = name.removeprefix("register_callback_for_")
        getattr(gpu_trace, name)(lambda *given, kind=kind: told.append((kind, *given)))

def of(work):
    told.clear()
    kept = work()
    return list(told), kept

seen = {}
told_of, x = of(lambda: torch.empty(10, device="cuda"))
seen["allocation"] = told_of == [("memory_allocation", x.data_ptr())]
address = x.data_ptr()
def free():
    global x
    del x
seen["deallocation"] = of(free)[0] == [("memory_deallocation", address)]
event = torch.cuda.Event()
seen["no event yet"] = of(lambda: torch.cuda.Event())[0] == []
told_of, _ = of(event.record)
seen["creation"] = told_of == [
    ("event_creation", event._as_parameter_.value),
    ("event_record", event._as_parameter_.value, 0),
]
seen["wait"] = of(event.wait)[0] == [("event_wait", event._as_parameter_.value, 0)]
seen["synchronize"] = of(event.synchronize)[0] == [
    ("event_synchronization", event._as_parameter_.value)
]
handle = event._as_parameter_.value
def forget():
    global event
    del event
seen["deletion"] = of(forget)[0] == [("event_deletion", handle)]
told_of, stream = of(torch.cuda.Stream)
seen["streams"] = [kind for kind, *_ in told_of] == ["stream_creation"] * 32 and (
    told_of[0][1] == stream.cuda_stream
)
seen["once"] = of(torch.cuda.Stream)[0] == []
seen["device"] = of(torch.cuda.synchronize)[0] == [("device_synchronization",)]
seen["stream"] = of(stream.synchronize)[0] == [("stream_synchronization", stream.cuda_stream)]
values = torch.rand(5, device="cuda")
waited = [entry for entry in of(values.nonzero)[0] if entry[0].endswith("synchronization")]
seen["read"] = waited == [("stream_synchronization", 0)]
print(json.dumps(seen))
"""
    )
    assert all(seen.values()), seen
