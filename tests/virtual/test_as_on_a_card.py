"""What a card shows in places where few programs look: settings, addresses, events, warnings."""

import ctypes
import gc
import inspect
import json
import time
import warnings

import pytest
import torch
import torch.cuda.comm as comm

from anydevice import virtual

from .own_process import run


@pytest.fixture(autouse=True, scope="module")
def machine():
    virtual.enable(2, "a100-40gb")
    yield
    virtual.disable()


def again(make):
    """Whether what is made after a tensor is freed is where the tensor was."""
    tensor = make()
    address = tensor.data_ptr()
    del tensor
    return make().data_ptr() == address


@pytest.mark.parametrize("numel", [1, 1000, 1 << 20, 1 << 22])
def test_a_freed_block_comes_back_at_its_address(numel):
    assert again(lambda: torch.empty(numel, device="cuda"))
    assert again(lambda: torch.empty(numel, pin_memory=True))
    x = torch.ones(numel, device="cuda")
    x + 1  # from its first call, an op knows which of its allocations is the result
    assert again(lambda: x + 1)


def blocks():
    segments = torch.cuda.memory_snapshot()
    return [block for segment in segments for block in segment["blocks"]]


def test_every_tensor_lies_in_a_block_of_the_snapshot():
    x = torch.randn(64, 64, device="cuda")
    made = [x, x @ x, x.sum(), x.relu(), *x.sort(), *torch.linalg.qr(x), x.double().exp()]
    live = {b["address"] for b in blocks() if b["state"] == "active_allocated"}
    assert {tensor.data_ptr() for tensor in made} <= live


def test_results_in_their_place_are_right_and_counted_once():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    x = torch.arange(600.0, device="cuda")
    for _ in range(3):  # the first time an op is guessed at, then it is known
        y = torch.stack([x, x + 1]).t().contiguous().cumsum(0)
        assert y.cpu().equal(torch.stack([x.cpu(), x.cpu() + 1]).t().contiguous().cumsum(0))
        del y
    assert torch.cuda.memory_allocated() - before == 2560  # of x
    del x
    assert torch.cuda.memory_allocated() == before


def test_a_stream_of_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(
        RuntimeError, match=r"Device index value 1[67] is out of index range \[0, 2\)"
    ):
        torch.accelerator.current_stream(16)


def test_memory_can_be_registered_as_pinned():
    cudart, tensor = torch.cuda.cudart(), torch.ones(20)
    assert int(cudart.cudaHostRegister(tensor.data_ptr(), 80, 0)) == 0
    assert tensor.is_pinned()
    assert tensor[3:].is_pinned()
    assert int(cudart.cudaHostRegister(tensor.data_ptr(), 80, 0)) == 712
    assert int(cudart.cudaHostUnregister(tensor.data_ptr())) == 0
    assert not tensor.is_pinned()
    assert int(cudart.cudaHostUnregister(tensor.data_ptr())) == 713


def test_cudart_makes_streams():
    handle = ctypes.c_ulonglong(0)
    assert int(torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle))) == 0
    stream = torch.cuda.ExternalStream(handle.value)
    assert stream.cuda_stream == handle.value != 0


def test_scatter_names_an_output_with_too_many_dimensions():
    outputs = [torch.empty(2, 4, 1, device="cuda:0"), torch.empty(2, 4, device="cuda:1")]
    with pytest.raises(RuntimeError, match="Output tensor at index 0 has incorrect shape"):
        comm.scatter(torch.randn(4, 4), out=outputs)


def test_a_card_says_how_fast_its_clocks_are():
    here = torch.cuda.get_device_properties(0)
    assert (here.memory_bus_width, here.memory_clock_rate) == (5120, 1_215_000)
    assert here.clock_rate == 1_411_000


def test_a_card_has_a_uuid_of_16_bytes():
    uuids = [torch.cuda.get_device_properties(i).uuid for i in range(2)]
    assert [len(uuid.bytes) for uuid in uuids] == [16, 16]
    assert [len(str(uuid)) for uuid in uuids] == [36, 36]
    assert uuids[0].bytes != uuids[1].bytes
    assert bytes(uuids[0].bytes).hex() == str(uuids[0]).replace("-", "")


def warned(act):
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            act()
    finally:
        torch.set_warn_always(False)
    return [str(warning.message) for warning in seen]


def test_the_old_types_warn():
    (text,) = warned(lambda: torch.cuda.FloatTensor([0]))
    assert text.startswith("The torch.cuda.*DtypeTensor constructors are no longer recommended.")
    try:
        (text,) = warned(lambda: torch.set_default_tensor_type(torch.cuda.FloatTensor))
        assert text.startswith("torch.set_default_tensor_type() is deprecated as of PyTorch 2.1")
    finally:
        warned(lambda: torch.set_default_tensor_type(torch.FloatTensor))


def test_the_old_types_take_a_device():
    with torch.cuda.device(1):
        tensors = [torch.cuda.FloatTensor(1, device=device) for device in (None, 0)]
        assert [tensor.get_device() for tensor in (torch.cuda.FloatTensor(1), *tensors)] == [
            1,
            1,
            0,
        ]


def test_the_old_types_are_of_their_device():
    with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu"):
        torch.cuda.FloatTensor(2, device="cpu")


def test_how_many_plans_of_cufft_are_kept_is_each_gpus_own():
    plans = torch.backends.cuda.cufft_plan_cache
    plans[1].max_size = 10
    assert [plans[i].max_size for i in range(2)] == [4096, 10]
    with pytest.raises(RuntimeError, match="must be non-negative"):
        plans[1].max_size = -1


def test_a_kaiser_window_is_the_cpus():
    found = torch.kaiser_window(9, periodic=False, beta=5.0, device="cuda")
    torch.testing.assert_close(found.cpu(), torch.kaiser_window(9, periodic=False, beta=5.0))


def test_each_of_the_old_types_makes_a_tensor():
    kinds = [kind for kind in torch._tensor_classes if kind.is_cuda and not kind.is_sparse]
    assert len(kinds) == 10
    assert all(kind(2).fill_(1).type() == kind.__name__ for kind in kinds)


def test_events_of_two_gpus_have_no_time_between_them():
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    for device, event in enumerate(events):
        with torch.cuda.device(device):
            event.record()
    with pytest.raises(torch.AcceleratorError, match="invalid resource handle"):
        events[0].elapsed_time(events[1])


def test_a_sleeping_stream_is_busy_and_others_are_not():
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    before, after, joined = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    with torch.cuda.stream(stream):
        before.record()
        torch.cuda._sleep(50_000_000)
        after.record()
    assert other.query()
    assert not stream.query()
    assert not after.query()
    other.wait_event(after)
    joined.record(other)
    assert not joined.query()
    with pytest.raises(ValueError, match="must be completed"):
        before.elapsed_time(after)
    after.synchronize()
    assert after.query()
    assert stream.query()
    assert before.elapsed_time(after) > 30


def test_a_read_waits_for_its_stream():
    torch.cuda._sleep(20_000_000)
    began = time.perf_counter()
    assert torch.ones(1, device="cuda").item() == 1
    assert time.perf_counter() - began > 0.005
    assert torch.cuda.current_stream().query()


def test_memory_that_another_stream_uses_is_not_reused_before_it_is_done():
    x = torch.empty(100, device="cuda")
    address, stream = x.data_ptr(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
    x.record_stream(stream)
    del x
    assert torch.empty(100, device="cuda").data_ptr() != address
    stream.synchronize()
    assert torch.empty(100, device="cuda").data_ptr() == address


def test_pinned_memory_that_is_being_copied_is_not_reused():
    host, gpu = torch.ones(100).pin_memory(), torch.empty(100, device="cuda")
    address = host.data_ptr()
    torch.cuda._sleep(50_000_000)
    gpu.copy_(host, non_blocking=True)
    del host
    assert torch.empty(100, pin_memory=True).data_ptr() != address
    torch.cuda.synchronize()
    torch.empty(100, pin_memory=True)
    assert gpu.tolist() == [1.0] * 100


def test_host_memory_statistics_count_each_allocation():
    torch._C._host_emptyCache()
    before = torch.cuda.host_memory_stats()
    torch.ones(10240, pin_memory=True)
    torch._C._host_emptyCache()
    after = torch.cuda.host_memory_stats()
    for name in (
        "num_host_alloc",
        "host_alloc_time.count",
        "num_host_free",
        "host_free_time.count",
    ):
        assert after[name] - before[name] == 1, name


def test_an_index_out_of_range_is_cudas_assertion_with_a_note():
    table = torch.rand(40, device="cuda")
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered") as caught:
        table[torch.tensor([50], device="cuda")]
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.error_code == 710
    assert caught.value.__notes__ == [
        "On this virtual GPU: index 50 is out of bounds for dimension 0 with size 40"
    ]
    for act in (
        lambda index: table.gather(0, index),
        lambda index: table.index_select(0, index),
        lambda index: torch.nn.functional.embedding(index, table[:, None]),
        lambda index: torch.nn.functional.nll_loss(table[None].log(), index),
        lambda index: table.take(index),
        lambda index: torch.nn.functional.multi_margin_loss(table[None], index),
        lambda index: table.scatter_(0, index, 1.0),
    ):
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            act(torch.tensor([40], device="cuda"))
    with pytest.raises(IndexError, match="Dimension out of range"):
        table.sum(3)
    with pytest.raises(torch.AcceleratorError, match="invalid device ordinal") as caught:
        torch.zeros(1, device="cuda:7")
    assert not hasattr(caught.value, "__notes__")


def test_a_snapshot_does_not_hold_its_own_event():
    gc.collect()  # what other tests left is not freed in between
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history()
    torch.empty(1 << 27, device="cuda")  # a separate segment
    torch.cuda.empty_cache()
    try:
        actions = [
            [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]
            for _ in range(2)
        ]
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert actions[0][-1] == "segment_free"
    assert actions[1][-1] == "snapshot"


@pytest.mark.parametrize("context", ["alloc", "all", "state"])
def test_the_context_says_whose_frames_are_kept(context):
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(context=context)
    held = []

    def thealloc():
        held.append(torch.rand(3, 4, device="cuda"))

    def thefree():
        held.clear()

    try:
        thealloc()
        thefree()
        text = json.dumps(torch.cuda.memory._snapshot())
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert ("thealloc" in text, "thefree" in text) == (context != "state", context == "all")


def test_the_frames_of_torchscript_are_kept():
    @torch.jit.script
    def made_in_script():
        return torch.rand(311, 411, device="cuda")

    torch.cuda.memory._record_memory_history()
    try:
        tensor = made_in_script()
        (block,) = [b for b in blocks() if b["address"] == tensor.data_ptr()]
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert block["frames"][0]["name"] == "made_in_script"


def test_the_compilers_reset_finds_a_card():
    assert torch.compiler.reset() is None


def test_settings_of_the_environment():
    half = "import json\nfrom anydevice import virtual\nvirtual.enable()\n"
    asked = "print(json.dumps(torch.cuda.get_per_process_memory_fraction(0)))"
    assert run(half + asked, PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:0.5") == 0.5
    refused = """
from anydevice import UsageError
try:
    virtual.enable()
except UsageError as error:
    print(json.dumps(str(error)))
"""
    text = run(refused, PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:1.1")
    assert "per_process_memory_fraction is invalid" in text


def test_a_context_is_there_once_something_ran_on_its_gpu():
    seen = run(
        """
virtual.enable(2, "a100-40gb")
seen = []
def look(*_):
    seen.append([torch._C._cuda_hasPrimaryContext(device) for device in range(2)])
look()
look(torch.cuda.get_device_properties(0), torch.cuda.is_bf16_supported())
x = torch.randn(1, device="cuda:1")
look(str(x), x.copy_(x), x.cpu(), torch.zeros(2, pin_memory=True))
torch.cuda.set_device(0)
look()
print(json.dumps(seen))
"""
    )
    assert seen == [[False, False], [False, False], [False, True], [True, True]]


def test_a_forked_child_may_not_choose_a_gpu():
    seen = run(
        """
virtual.enable(2)
x = torch.rand(2, device="cuda")
read, write = os.pipe()
if os.fork() == 0:
    try:
        torch.cuda.set_device(1)
        text = "nothing raised"
    except RuntimeError as error:
        text = str(error)
    os.write(write, json.dumps([text, torch.cuda.memory_allocated()]).encode())
    os._exit(0)
print(os.read(read, 4096).decode())
"""
    )
    assert seen[0].startswith("Cannot re-initialize CUDA in forked subprocess.")
    assert seen[1] == 0


def test_a_destroyed_group_refuses_and_a_nan_is_found():
    seen = run(
        """
import torch.distributed as dist
virtual.enable()
def outcome(work):
    try:
        work()
        return "done"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
group, numbers = dist.distributed_c10d._get_default_group(), torch.rand(3, device="cuda")
nothing = torch.full((3,), float("nan"), device="cuda")
seen = [outcome(lambda: dist.all_reduce(numbers)), outcome(lambda: dist.all_reduce(nothing))]
seen.append(outcome(lambda: dist.broadcast(nothing, 0)))
group._get_backend(torch.device("cuda"))._set_enable_nan_check(False)
seen.append(outcome(lambda: dist.all_reduce(nothing)))
dist.destroy_process_group()
seen.append(outcome(lambda: group.allreduce([numbers]).wait()))
for device in (None, torch.device("cuda:0")):
    dist.init_process_group(
        "nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device
    )
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    dist.new_group([0])
    if device:
        dist.split_group(split_ranks=[[0]])
    seen.append(backend.comm_split_count())
    dist.destroy_process_group()
print(json.dumps(seen))
""",
        TORCH_NCCL_NAN_CHECK="1",
    )
    asserted = "AcceleratorError: CUDA error: device-side assert triggered"
    assert seen == [
        "done",
        asserted,
        asserted,
        "done",
        "DistBackendError: NCCL communicator was aborted on rank 0.",
        0,
        2,
    ]


def test_overrides_in_triton_are_put_off():
    registry = pytest.importorskip("torch._native.registry")

    def launches(*arguments):
        raise AssertionError("an override was called")

    launches.__annotations__ = {}
    register = registry.register_op_override
    asks_first = "cond" in inspect.signature(register).parameters  # from torch 2.13 on
    override = (lambda *given: True, launches) if asks_first else (launches,)
    register("triton", "aten", "bmm", "CUDA", *override, allow_multiple_override=True)
    registry.reenable_op_overrides(enable_op_symbols="bmm")  # as at the end of `import torch`
    a = torch.randn(2, 3, 1, device="cuda")
    assert torch.bmm(a, a.transpose(1, 2)).shape == (2, 3, 3)
