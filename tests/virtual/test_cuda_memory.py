"""Pools, the memory history, raw allocations and pinned memory."""

import _thread
import gc
import pickle
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from anydevice import virtual

from .own_process import run

MIB = 1 << 20


@pytest.fixture(autouse=True)
def machine():
    virtual.enable()
    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.memory._record_memory_history(None)


@pytest.fixture(autouse=True, scope="module")
def disabled_after():
    yield
    virtual.disable()


def test_what_is_allocated_in_a_pool_stays_in_it():
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    outside = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id == (0, pool.id[1])
    assert segment["allocated_size"] == inside.nbytes
    assert len(torch.cuda.memory_snapshot()) == 2
    key = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}.all.current"
    assert torch.cuda.memory_stats().get(key, 20 * MIB) == 20 * MIB  # torch 2.11 has no such figure
    del inside, outside


def test_a_pools_memory_comes_back_when_it_goes():
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() > before
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_a_pool_can_help_out_or_keep_its_segments_whole():
    found = run("""
virtual.enable(gpu="t4", hollow=True)
pool = torch.cuda.MemPool(use_on_oom=True)
with torch.cuda.use_mem_pool(pool):
    torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
helped = torch.empty(9 << 30, dtype=torch.uint8, device="cuda")
whole = torch.cuda.MemPool(no_split=True)
with torch.cuda.use_mem_pool(whole):
    kept = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
print(json.dumps([helped.nbytes, len(whole.snapshot())]))
""")
    assert found == [9 << 30, 2]


def line_of(entry):
    return next(frame for frame in entry["frames"] if frame["filename"] == __file__)["name"]


def test_the_history_names_each_allocation_and_its_frames():
    torch.cuda.memory._record_memory_history(max_entries=100)
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    address = snapshot["segments"][0]["address"]
    del x
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    actions = [entry["action"] for entry in trace]
    assert actions[:2] == ["segment_alloc", "alloc"]
    assert actions[-3:] == ["snapshot", "free_requested", "free_completed"]
    allocated = trace[1]
    assert (allocated["addr"], allocated["size"], allocated["stream"]) == (address, 3 * MIB, 0)
    here = "test_the_history_names_each_allocation_and_its_frames"
    assert line_of(allocated) == here
    (block,) = (b for b in snapshot["segments"][0]["blocks"] if b["state"] == "active_allocated")
    assert line_of(block) == here


def test_the_history_keeps_the_last_entries_and_skips_what_it_should():
    torch.cuda.memory._record_memory_history(
        max_entries=3, skip_actions=["free_requested", "segment_alloc"], context=None
    )
    for size in range(1, 6):
        torch.empty(size, dtype=torch.uint8, device="cuda")
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [entry["size"] for entry in trace[1:]] == [5, 5]
    assert [entry["action"] for entry in trace] == [
        "free_completed",
        "alloc",
        "free_completed",
    ]
    assert trace[0]["frames"] == []


def test_a_dumped_snapshot_is_one_the_viewer_reads(tmp_path):
    torch.cuda.memory._record_memory_history()
    x = torch.empty(1000, device="cuda")
    file = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(file))
    snapshot = pickle.loads(file.read_bytes())
    assert {"segments", "device_traces", "allocator_settings"} <= snapshot.keys()
    from torch.cuda._memory_viz import trace_plot

    assert "snapshot" in trace_plot(snapshot)
    del x


def test_history_of_a_thread_that_runs_no_python_code(capfd):
    torch.cuda.memory._record_memory_history()
    _thread.start_new_thread(torch.ones, (7,), {"device": "cuda"})
    end = time.monotonic() + 60
    made = []
    while not made:
        assert time.monotonic() < end
        time.sleep(0.01)
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
        made = [entry for entry in trace if entry["action"] == "alloc"]
    assert made[0]["frames"] == []
    assert capfd.readouterr().err == ""


def test_an_observer_hears_of_running_out():
    found = run("""
virtual.enable(gpu="t4", hollow=True)
heard = []
torch._C._cuda_attach_out_of_memory_observer(lambda *figures: heard.append(figures))
try:
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
print(json.dumps(heard))
""")
    ((device, wanted, total, free),) = found
    assert (device, wanted) == (0, 100 << 30)
    assert free == total


def test_raw_memory_is_counted_until_it_is_deleted():
    before = torch.cuda.memory_allocated()
    address = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == before + 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(address)


def test_without_caching_nothing_is_kept_or_counted():
    program = """
virtual.enable(gpu="t4", hollow=True)
x = torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
used = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
free, total = torch.cuda.mem_get_info()
try:
    torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
except torch.AcceleratorError as error:
    print(json.dumps([*used, total - free, str(error).splitlines()[0]]))
"""
    found = run(program, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert found == [0, 0, 10 << 30, "CUDA error: out of memory"]


def test_the_cache_can_be_left_out_for_a_block():
    torch.ones(1, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        x = torch.empty(1000, device="cuda")
        assert torch.cuda.memory_allocated() == before
    finally:
        torch.cuda.memory.caching_allocator_enable(True)
    del x
    assert torch._C._cuda_cudaCachingAllocator_is_enabled()


def test_the_allocators_settings_change_while_it_runs():
    found = run("""
virtual.enable(hollow=True)
torch.ones(1, device="cuda")
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
x = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
print(json.dumps([s["is_expandable"] for s in torch.cuda.memory_snapshot()]))
""")
    assert found == [False, True]


def test_an_allocator_of_ones_own_is_refused_in_a_sentence():
    with pytest.raises(NotImplementedError, match="needs a real GPU's memory"):
        torch._C._cuda_customAllocator(1, 2)


# ---- pinned


def test_pinned_memory_is_remembered_over_views():
    pinned = torch.ones(4, 4).pin_memory()
    assert pinned.is_pinned()
    assert pinned[1:, 2].is_pinned()
    assert pinned.view(16)[3:].is_pinned()
    assert not pinned.clone().is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned.untyped_storage().is_pinned()


def test_only_dense_tensors_of_the_host_can_be_pinned():
    on_gpu = torch.ones(2, device="cuda")
    assert not on_gpu.is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        on_gpu.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="cuda", pin_memory=True)


def test_host_memory_is_counted_in_powers_of_two():
    torch.cuda.init()
    torch._C._host_emptyCache()
    torch.cuda.reset_peak_host_memory_stats()
    before = torch.cuda.host_memory_stats()
    pinned = torch.empty(1000, dtype=torch.uint8).pin_memory()
    during = torch.cuda.host_memory_stats()
    del pinned
    after = torch.cuda.host_memory_stats()
    name = "active_bytes.current"
    freed = 1024 if torch.__version__ < "2.13" else 0  # earlier ones do not count what is freed
    assert [s[name] - before[name] for s in (during, after)] == [1024, freed]
    name = "allocated_bytes.current"  # it waits for the next one
    assert [s[name] - before[name] for s in (during, after)] == [1024, 1024]
    torch.accelerator.empty_host_cache() if hasattr(
        torch.accelerator, "empty_host_cache"
    ) else torch._C._host_emptyCache()
    assert torch.cuda.host_memory_stats()[name] == before[name]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_pins_what_it_gives(workers):
    loader = DataLoader(
        TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True, num_workers=workers
    )
    batches = [batch for (batch,) in loader]
    assert all(batch.is_pinned() for batch in batches)
    moved = [batch.to("cuda", non_blocking=True) for batch in batches]
    assert torch.cat(moved).tolist() == list(range(8))
