"""GPUs that come and go in a running process: what stays, what goes, and what survives them."""

import pytest

import anydevice as ad
from anydevice.virtual.machine import machine
from anydevice.virtual.visible import uuid

from .own_process import run

SNAPSHOT = '''
import types
import torch.cuda._gpu_trace, torch.cuda.graphs, torch.cuda.memory
import torch.cuda.nccl, torch.cuda.streams
import torch.backends.cudnn.rnn
import anydevice as ad

def snapshot():
    """Every attribute of torch.cuda, torch._C, torch.backends and their parts, by identity."""
    found, waiting = {}, [("torch", torch), ("torch._C", torch._C),
        ("torch.version", torch.version), ("torch._tensor_str", torch._tensor_str),
        ("torch.UntypedStorage", torch.UntypedStorage)]
    waiting += [(name, module) for name, module in sys.modules.items()
                if name.startswith(("torch.cuda", "torch.backends", "torch.accelerator"))]
    for owner, thing in waiting:
        for name, value in vars(thing).items():
            if name != "__warningregistry__":
                found[f"{owner}.{name}"] = value
        if hasattr(thing, "m"):  # a module that PyTorch has hidden behind properties
            found.update({f"{owner}.m.{name}": value for name, value in vars(thing.m).items()})
    return found

def state():
    """What can be asked of PyTorch without a GPU."""
    cuda = torch.cuda
    return [cuda.is_available(), cuda.device_count(), cuda.is_initialized(),
        len(cuda._queued_calls), torch.accelerator.is_available(),
        torch.get_default_device().type, torch._C._get_default_device(),
        torch._C._is_multithreading_enabled(), torch.backends.cudnn.is_available(),
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", "CUDA"),
        torch.get_rng_state().sum().item(), str(torch.ones(2)), torch.is_autocast_enabled("cuda")]

def work():
    x = torch.ones(4, 4, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.rand(2, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    torch.cuda.manual_seed_all(3)
    torch.set_default_device("cuda")
    assert torch.zeros(1).is_cuda
'''


def test_leaving_the_block_leaves_pytorch_as_it_was():
    changed, before, after, message = run(f"""
import sys
{SNAPSHOT}
torch.manual_seed(4)
whole, asked = snapshot(), state()
for gpus, kind in ((2, "t4"), (1, "h100"), (3, "a100-80gb")):
    with ad.virtual_gpus(gpus, kind):
        assert torch.cuda.device_count() == gpus
        work()
now = snapshot()
try:
    torch.ones(1, device="cuda")
except (AssertionError, RuntimeError) as error:
    message = str(error)
print(json.dumps([
    sorted(name for name in whole.keys() | now.keys()
           if whole.get(name, 0) is not now.get(name, 1)),
    asked, state(), message]))
""")
    assert changed == []
    assert after == before
    assert "CUDA enabled" in message or "NVIDIA driver" in message


def test_without_them_cuda_is_not_there_also_after_pinned_memory():
    said, initialised = run("""
import anydevice as ad
with ad.virtual_gpus():
    torch.ones(3, device="cuda").to("cpu", non_blocking=True)  # has torch begin with CUDA for good
try:
    torch.ones(1, device="cuda")
except (AssertionError, RuntimeError) as error:
    said = str(error)
print(json.dumps([said, torch.cuda.is_initialized()]))
""")
    assert "not compiled with CUDA" in said or said == "No CUDA GPUs are available"
    assert not initialised


def test_tensors_that_outlive_their_gpus_come_home_and_do_nothing_else():
    home, refused, item = run("""
import anydevice as ad
with ad.virtual_gpus(2):
    x = torch.arange(6.0, device="cuda:1").view(2, 3)
    turned, grown = x.t(), (x.clone().requires_grad_() * 2)
refused = []
def refuse(work):
    try:
        work()
        refused.append("it worked")
    except RuntimeError as error:
        refused.append(str(error))
every = [lambda: x + 1, lambda: x.sum(), lambda: print(x), lambda: grown.sum().backward(),
         lambda: x.add_(1), lambda: x.clone(), lambda: torch.empty_like(x), lambda: x.resize_(9)]
for work in every:
    refuse(work)
home = [x.cpu().tolist(), turned.to("cpu").tolist(), x[1].cpu().tolist(),
        grown.detach().cpu().sum().item(), torch.empty(2, 3).copy_(x).tolist()]
with ad.virtual_gpus(1, "t4", hollow=True):
    kept = torch.ones(3, device="cuda")
    refuse(lambda: x * 2)  # its GPU is gone for good, and so is its number
    home.append(x.cpu().tolist())
with ad.virtual_gpus(1):
    refuse(lambda: kept * 2)
    home.append(kept.cpu().tolist())
    y = torch.ones(2, device="cuda")
    assert torch.cuda.memory_allocated() == 512 + 512  # kept's, and y's
del x, turned, grown, kept
print(json.dumps([home, refused, y.cpu().tolist()]))
""")
    rows = [[0, 1, 2], [3, 4, 5]]
    columns = [[0, 3], [1, 4], [2, 5]]
    assert home == [rows, columns, [3, 4, 5], 30, rows, rows, [0, 0, 0]]
    assert len(refused) == 10
    for sentence in refused:
        assert "outlived its virtual GPU (anydevice.virtual_gpus" in sentence
    assert item == [1, 1]


def test_blocks_inside_blocks_and_a_decorator():
    seen = run("""
import anydevice as ad
seen = []
@ad.virtual_gpus(2, "t4", memory="2GiB")
def inside():
    with ad.virtual_gpus(2, "t4", memory=2 << 30):
        seen.append(torch.cuda.device_count())
    seen.append(torch.cuda.device_count())
    for other in ({"gpus": 3}, {"memory": 1 << 30}, {"hollow": True}):
        try:
            ad.virtual.enable(**{"gpus": 2, "gpu": "t4", "memory": "2GiB", **other})
        except ad.UsageError as error:
            seen.append(str(error))
    seen.append(torch.cuda.mem_get_info()[1])
inside()
inside()
seen.append(torch.cuda.is_available())
print(json.dumps(seen))
""")
    once, again = seen[:6], seen[6:-1]
    assert once == again
    assert once[:2] == [2, 2]
    assert "expected the 2 virtual GPUs of kind Tesla T4 that this process has already" in once[2]
    assert "got 3 virtual GPUs of kind Tesla T4" in once[2]
    assert "with 1,073,741,824 bytes instead of 2,147,483,648" in once[3]
    assert "got 2 hollow GPUs" in once[4]
    assert once[5] == 2 << 30
    assert seen[-1] is False


def test_an_error_halfway_leaves_nothing_enabled():
    assert run("""
import anydevice as ad
from anydevice.virtual import surface
before = dict(vars(torch._C))
found = []
for part in ("show_names", "show_attributes"):
    real = getattr(surface, part)
    def fail(*arguments, **options):
        real(*arguments, **options)
        raise MemoryError("halfway")
    setattr(surface, part, fail)
    try:
        ad.virtual.enable()
    except MemoryError:
        found += [torch.cuda.is_available(), ad.virtual.enabled() is None,
                  all(vars(torch._C).get(name) is value for name, value in before.items()),
                  len(vars(torch._C)) - len(before)]
    setattr(surface, part, real)
ad.virtual.enable()
print(json.dumps([found, torch.ones(2, device="cuda").tolist()]))
""") == [[False, True, True, 0] * 2, [1, 1]]


def test_threads_streams_and_generators_of_gpus_that_are_gone():
    assert run("""
import threading
import anydevice as ad
turn, seen = [threading.Event() for _ in range(2)], []
def elsewhere():
    torch.cuda.set_device(3)
    turn[0].set()
    turn[1].wait()
    seen.append([torch.cuda.current_device(), torch.ones(1, device="cuda").get_device()])
with ad.virtual_gpus(4):
    thread = threading.Thread(target=elsewhere)
    thread.start()
    turn[0].wait()
    torch.cuda.set_device(2)
    stream, generator = torch.cuda.Stream(), torch.Generator("cuda:3")
with ad.virtual_gpus(2):
    turn[1].set()
    thread.join()
    seen.append(torch.cuda.current_device())
    torch.rand(2, device="cuda", generator=generator)
del stream, generator
print(json.dumps(seen))
""") == [[0, 0], 0]


@pytest.mark.parametrize("gpus", [0, 17, -1, 2.0, True, "2"])
def test_a_number_of_gpus_that_cannot_be(gpus):
    with pytest.raises(ad.UsageError, match=r"expected 1 to 16 virtual GPUs"):
        machine(gpus)
    with (
        pytest.raises(ad.UsageError, match=r"expected 1 to 16 virtual GPUs"),
        ad.virtual_gpus(gpus),
    ):
        pass


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        ("16GiB", 16 << 30),
        ("16GB", 16 * 10**9),
        ("512 MiB", 512 << 20),
        ("1.5gib", 3 << 29),
        (1 << 20, 1 << 20),
        ("123456", 123456),
        ("80G", 80 * 10**9),
    ],
)
def test_memory_is_a_size(memory, size):
    assert machine(memory=memory).gpu.memory == size


@pytest.mark.parametrize("memory", ["", "16 gigs", "-1GiB", "GiB", 0, "1e9", "1.2.3GB", True, "∞"])
def test_memory_that_is_no_size(memory):
    with pytest.raises(ad.UsageError, match=r"expected a size such as 16GiB"):
        machine(memory=memory)


def test_a_kind_that_is_not_known():
    with pytest.raises(ad.UsageError, match=r"did you mean rtx-4090"):
        machine(1, "rtx-4091")


def test_a_real_gpu_is_refused_before_anything_changes():
    """As torch's CUDA build counts it; here a stand-in does, since there is none to count."""
    assert run("""
import anydevice as ad
torch._C._cuda_getDeviceCount = lambda: 2
names = dict(vars(torch._C))
try:
    ad.virtual.enable()
except ad.UsageError as error:
    print(json.dumps([str(error), dict(vars(torch._C)) == names, ad.virtual.enabled() is None]))
""") == [
        "expected a process without real GPUs, got one that sees 2: start it with "
        "CUDA_VISIBLE_DEVICES= (empty) to use virtual ones.",
        True,
        True,
    ]


def test_cuda_visible_devices_chooses_at_the_first_use():
    nobody = "No CUDA GPUs are available"
    cases = {  # what the variable is when GPUs are asked for, and at the first use: what is seen
        (None, None): [4, 4, True, [0, 1, 2, 3], "cuda:3"],
        ("2,0", "2,0"): [2, 2, True, [2, 0], "cuda:1"],
        ("", ""): [4, 4, True, [0, 1, 2, 3], "cuda:3"],  # that is about the real GPUs
        ("", "1"): [4, 1, True, [1], "cuda:0"],
        ("-1", ""): [4, 0, False, [], nobody],
        ("1", "-1"): [1, 0, False, [], nobody],
        ("7", "7"): [0, 0, False, [], nobody],
        ("1,1", "1,1"): [0, 0, False, [], nobody],
        ("1,9,0", "1,9,0"): [1, 1, True, [1], "cuda:0"],
        (None, f"GPU-{uuid(3)}"): [4, 1, True, [3], "cuda:0"],
    }
    seen = run(f"""
import anydevice as ad
cuda, seen = torch.cuda, []
def choose(value):
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.update(dict(CUDA_VISIBLE_DEVICES=value) if value is not None else dict())
for before, at_first in {list(cases)}:
    choose(before)
    with ad.virtual_gpus(4):
        counted = cuda.device_count()  # which leaves it open, as on a card
        choose(at_first)
        count, available = cuda.device_count(), cuda.is_available()
        assert count == torch.accelerator.device_count()
        try:
            last = str(torch.ones(1, device=f"cuda:{{max(count, 1) - 1}}").device)
            choose("3")  # too late
        except RuntimeError as error:
            last = str(error)
        numbers = [cuda.get_device_properties(i).pci_bus_id for i in range(cuda.device_count())]
        seen.append([counted, count, available, numbers, last])
print(json.dumps(seen))
""")
    assert seen == list(cases.values())
