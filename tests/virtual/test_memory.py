"""Memory of a virtual GPU, as torch.cuda shows it: what a card's caching allocator would say."""

from __future__ import annotations

import gc
import os

import pytest
import torch

from anydevice import system

from .allocator_model import Model
from .own_process import run

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(autouse=True)
def machine(virtual_gpu):
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def current(name: str, pool: str = "all") -> int:
    return torch.cuda.memory_stats()[f"{name}.{pool}.current"]


def test_a_small_tensor_takes_512_bytes_of_a_2_mib_segment():
    before = torch.cuda.memory_allocated()
    requested = current("requested_bytes")
    tensor = torch.empty(3, device="cuda")
    assert torch.cuda.memory_allocated() - before == 512
    assert current("requested_bytes") - requested == 12
    assert current("reserved_bytes", "small_pool") % (2 * MIB) == 0
    del tensor
    assert torch.cuda.memory_allocated() == before


def test_segments_stay_until_the_cache_is_emptied():
    before = torch.cuda.memory_reserved()
    tensor = torch.empty(11 * MIB + 1, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() - before == 12 * MIB
    del tensor
    assert torch.cuda.memory_reserved() - before == 12 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


def test_a_peak_is_remembered_until_it_is_reset():
    before = torch.cuda.memory_allocated()
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() - before == 64 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == before


def test_accumulated_figures_can_be_reset():
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] > 0
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


def test_an_empty_tensor_takes_nothing():
    before = torch.cuda.memory_stats()
    tensor = torch.empty(0, 3, device="cuda")
    assert tensor.data_ptr() == 0
    assert torch.cuda.memory_stats() == before


def test_views_share_their_storages_block():
    tensor = torch.empty(1000, device="cuda")
    before = torch.cuda.memory_allocated()
    views = [tensor[1:], tensor.view(10, 100), tensor.t(), tensor.detach()]
    assert torch.cuda.memory_allocated() == before
    del views


def test_results_of_kernels_are_counted_too():
    x = torch.ones(MIB, device="cuda")
    before = torch.cuda.memory_allocated()
    y = x * 2
    assert torch.cuda.memory_allocated() - before == 4 * MIB
    del y
    assert torch.cuda.memory_allocated() == before


def test_accelerator_and_cuda_say_the_same():
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated()


def test_free_memory_is_the_cards_less_what_is_reserved():
    tensor = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    assert total == torch.cuda.get_device_properties(0).total_memory
    assert total - free >= torch.cuda.memory_reserved()
    del tensor


def test_what_the_card_cannot_hold_is_out_of_memory_in_pytorchs_words():
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(100 * GIB, dtype=torch.uint8, device="cuda")
    text = str(raised.value)
    total = torch.cuda.get_device_properties(0).total_memory
    assert text.startswith(
        "CUDA out of memory. Tried to allocate 100.00 GiB. GPU 0 has a total capacity of "
        f"{total / GIB:.2f} GiB of which "
    )
    assert " is free. Including non-PyTorch memory, this process has " in text
    assert (
        " is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    ) in text
    assert torch.cuda.memory_stats()["num_ooms"] >= 1


def test_more_than_an_exabyte_has_words_of_its_own():
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        torch.empty(1 << 61, dtype=torch.uint8, device="cuda")


def test_a_full_card_recovers_when_something_is_freed():
    found = run("""
virtual.enable(gpu="t4", hollow=True)
kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(14)]
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    refused = False
except torch.OutOfMemoryError:
    refused = True
kept.pop()
torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
stats = torch.cuda.memory_stats()
print(json.dumps([refused, stats["num_ooms"], stats["num_alloc_retries"]]))
""")
    assert found == [True, 1, 1]


def test_a_fraction_of_the_card_can_be_allowed():
    found = run("""
virtual.enable(gpu="t4", hollow=True)
torch.cuda.set_per_process_memory_fraction(0.25)
try:
    torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    total = torch.cuda.get_device_properties(0).total_memory
    print(json.dumps([total, str(error)]))
""")
    total, text = found
    assert f" {total / 4 / GIB:.2f} GiB allowed; Of the allocated memory 0 bytes" in text


def test_devices_are_counted_apart():
    found = run("""
virtual.enable(gpus=2)
a = torch.empty(100, device="cuda:0"); b = torch.empty(3 << 20, device="cuda:1")
print(json.dumps([torch.cuda.memory_allocated(d) for d in (0, 1)]))
""")
    assert found == [512, 12 * MIB]


def test_a_block_used_on_another_stream_stays_active_until_the_next_allocation():
    tensor = torch.empty(1000, device="cuda")
    active, allocated = current("active"), current("allocation")
    tensor.record_stream(torch.cuda.Stream())
    del tensor
    assert (current("active"), current("allocation")) == (active, allocated - 1)
    torch.empty(1, device="cuda")
    assert current("active") == active - 1


def test_a_snapshot_holds_every_segment_and_block():
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    segments = torch.cuda.memory_snapshot()
    assert sum(s["total_size"] for s in segments) == torch.cuda.memory_reserved()
    assert sum(s["allocated_size"] for s in segments) == torch.cuda.memory_allocated()
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    held = [b for s in segments for b in s["blocks"] if b["requested_size"] == 3 * MIB]
    assert [block["state"] for block in held] == ["active_allocated"]
    del tensor


def test_the_summary_prints():
    assert "Allocated memory" in torch.cuda.memory_summary()


SETTINGS = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],garbage_collection_threshold:0.6"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_environment_sets_the_allocator(name):
    program = """
virtual.enable(hollow=True)
x = torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
y = torch.empty((5 << 30) + 1, dtype=torch.uint8, device="cuda")
print(json.dumps(torch.cuda.memory_allocated()))
"""
    assert run(program, **{name: SETTINGS}) == 5 * GIB + 5.5 * GIB


def test_expandable_segments_grow_by_the_page():
    found = run(
        """
virtual.enable(hollow=True)
kept = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
kept.append(torch.empty(1, device="cuda"))
stats = torch.cuda.memory_stats()
print(json.dumps([stats["reserved_bytes.all.current"], stats["segment.all.current"],
                  len(torch.cuda.memory_snapshot())]))
""",
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert found == [100 * MIB + 2 * MIB, 0, 2]


def test_settings_can_change_while_the_program_runs():
    found = run("""
virtual.enable(hollow=True)
a = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
b = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
print(json.dumps([s["is_expandable"] for s in torch.cuda.memory_snapshot()]))
""")
    assert found == [False, True]


@pytest.mark.parametrize("seed", range(3))
def test_a_trace_of_tensors_gives_the_statistics_of_the_published_rules(seed):
    program = f"""
import random
virtual.enable(hollow=True)
draw, live, after = random.Random({seed}), {{}}, []
for i in range(200):
    if live and draw.random() < 0.45:
        del live[draw.choice(sorted(live))]
    else:
        size = int(2 ** draw.uniform(0, 26))
        live[i] = torch.empty(size, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    after.append([stats[f"{{n}}.all.current"] for n in ("allocated_bytes", "reserved_bytes",
                  "active_bytes", "requested_bytes", "inactive_split_bytes", "segment")])
print(json.dumps(after))
"""
    assert run(program) == published(seed)


def published(seed: int) -> list[list[int]]:
    import random

    model, draw, live, after = Model(total=79 * GIB), random.Random(seed), {}, []
    for i in range(200):
        if live and draw.random() < 0.45:
            model.free(live.pop(draw.choice(sorted(live))))
        else:
            live[i] = model.allocate(int(2 ** draw.uniform(0, 26)), 0)
        now = model.current()
        names = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        after.append([now[f"{n}.all"] for n in (*names, "inactive_split_bytes", "segment")])
    return after


def test_hollow_tensors_take_no_memory_of_the_host():
    found = run("""
virtual.enable(hollow=True)
torch.ones(10, device="cuda").sum()
before = most_resident()
kept = [torch.ones(1 << 28, device="cuda") for _ in range(8)]
total = sum(t * 2 for t in kept)
after = most_resident()
print(json.dumps([torch.cuda.memory_allocated(), after - before]))
""")
    allocated, grown = found
    assert allocated == 9 * GIB
    assert grown < 100_000 << 10


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_real_tensors_take_no_more_of_the_hosts_memory_than_on_the_cpu():
    program = """
virtual.enable()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
torch.ones(1, device="{device}") * 2
before = resident()
kept = [torch.ones(5000, device="{device}") * 2 for _ in range(4000)]
print(json.dumps(resident() - before))
"""
    on_cpu, on_gpu = (run(program.format(device=device)) for device in ("cpu", "cuda"))
    assert on_gpu <= 1.05 * on_cpu


def test_what_the_host_does_not_have_is_out_of_memory_that_a_program_can_catch():
    """Linux would hand it out, and end the process that writes to it."""
    caught, allocated, after, refused = run("""
virtual.enable(memory="100TB")
def figure(name):
    lines = open("/proc/meminfo").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))
caught = []
for size in (figure("MemTotal") + figure("SwapTotal") - (1 << 20), 90 << 40):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        caught.append(str(error))
allocated = torch.cuda.memory_allocated()
try:
    torch.empty(200 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    refused = str(error)
print(json.dumps([caught, allocated, torch.ones(3, device="cuda").sum().item(), refused]))
""")
    assert len(caught) == (2 if system.LINUX else 1)  # only Linux says how much is free
    for sentence in caught:
        assert sentence.startswith(
            "CUDA out of memory: a virtual GPU's memory is the host's, which"
        )
    assert "90.00 TiB" in caught[-1] or "92160.00 GiB" in caught[-1]
    assert (allocated, after) == (0, 3)
    assert "GPU 0 has a total capacity of" in refused


@pytest.mark.parametrize("settings", ["backround:native", "pinned_num_register_threads:3"])
def test_settings_that_pytorch_does_not_know_are_a_sentence(settings):
    said = run(
        """
import anydevice as ad
try:
    virtual.enable()
except ad.UsageError as error:
    print(json.dumps([str(error), torch.cuda.is_available()]))
""",
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )
    assert f"that PyTorch knows, got PYTORCH_CUDA_ALLOC_CONF={settings}: " in said[0]
    assert said[1] is False
