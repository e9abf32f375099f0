"""What stands around the tensors: their old types, generators, the profiler, NVTX, settings."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from anydevice import virtual

from .own_process import run


@pytest.fixture(autouse=True)
def machine():
    virtual.enable()


def cuda(*shape):
    return torch.ones(shape, device="cuda")


# ---- the types of tensors


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_type_makes_tensors_of_its_kind():
    assert torch.cuda.FloatTensor([1, 2]).tolist() == [1, 2]
    assert torch.cuda.HalfTensor(2, 3).shape == (2, 3)
    assert torch.cuda.LongTensor().type() == "torch.cuda.LongTensor"
    indices = torch.tensor([[0, 1], [1, 0]], device="cuda")
    sparse = torch.cuda.sparse.FloatTensor(indices, cuda(2), torch.Size([2, 2]))
    assert sparse.to_dense().tolist() == [[0, 1], [1, 0]]


def test_tensors_are_of_their_type_and_go_to_another():
    x = cuda(2)
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.half(), torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert not isinstance(x.to_sparse(), torch.cuda.FloatTensor)
    assert isinstance(x.to_sparse(), torch.cuda.sparse.FloatTensor)
    assert torch.ones(2).type(torch.cuda.HalfTensor).dtype == torch.float16
    assert torch.ones(2).type("torch.cuda.DoubleTensor").type() == "torch.cuda.DoubleTensor"
    assert torch.cuda.FloatTensor.dtype == torch.float32


@pytest.mark.filterwarnings("ignore")
def test_a_default_type_or_device_is_where_tensors_are_made():
    try:
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        made = torch.zeros(2)
        assert made.type() == "torch.cuda.DoubleTensor"
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.zeros(2).type() == "torch.FloatTensor"
    try:
        torch.set_default_device("cuda")
        assert torch.tensor([1.0]).is_cuda
    finally:
        torch.set_default_device(None)
    with pytest.raises(TypeError, match="floating-point types"):
        torch.set_default_tensor_type(torch.cuda.LongTensor)


# ---- random numbers


def test_a_generators_state_is_seed_and_offset():
    generator = torch.Generator("cuda").manual_seed(3)
    first = torch.rand(4, device="cuda", generator=generator)
    assert generator.get_offset() > 0
    state = generator.get_state()
    second = torch.rand(4, device="cuda", generator=generator)
    generator.set_state(state)
    assert torch.equal(second, torch.rand(4, device="cuda", generator=generator))
    twin = generator.clone_state()
    assert torch.equal(*(torch.rand(4, device="cuda", generator=g) for g in (generator, twin)))
    generator.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="cuda", generator=generator))


def test_generators_can_share_a_state():
    one, two = torch.Generator("cuda"), torch.Generator("cuda")
    two.graphsafe_set_state(one.graphsafe_get_state())
    one.manual_seed(7)
    assert two.initial_seed() == 7
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        one.set_state(torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(RuntimeError, match="multiple of 4"):
        one.set_offset(3)


# ---- the profiler and NVTX


def test_the_profiler_gives_each_op_its_time_on_the_gpu(capfd):
    x = cuda(64, 64)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        (x @ x).sum()
    averages = recorded.key_averages()
    product = next(event for event in averages if event.key == "aten::mm")
    assert product.device_time_total > 0
    assert "CUDA total" in averages.table(sort_by="cuda_time_total")
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_the_profiler_writes_a_trace_and_runs_for_the_gpu_alone(tmp_path):
    x = cuda(8)
    with profile(activities=[ProfilerActivity.CUDA], profile_memory=True) as recorded:
        x * 2
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    assert "aten::mul" in json.dumps(json.loads((tmp_path / "trace.json").read_text()))
    assert ProfilerActivity.CUDA in torch.profiler.supported_activities()


def test_it_is_said_once_that_the_times_are_the_cpus():
    found = run("""
import logging
said = []
logging.getLogger("anydevice").addFilter(lambda record: said.append(record.getMessage()))
virtual.enable()
x = torch.ones(2, device="cuda")
for _ in range(2):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        x + 1
print(json.dumps(said))
""")
    assert found == ["The profiler's CUDA times are the CPU's: nothing runs on a real GPU."]


def test_nvtx_ranges_nest_and_reach_nobody():
    nvtx = torch.cuda.nvtx
    assert [nvtx.range_push("a"), nvtx.range_push("b"), nvtx.range_pop(), nvtx.range_pop()] == [
        0,
        1,
        1,
        0,
    ]
    first, second = nvtx.range_start("c"), nvtx.range_start("d")
    assert first != second
    nvtx.range_end(first)
    nvtx.mark("e")
    watching = torch.autograd.profiler.emit_nvtx()
    with torch.cuda.profiler.profile(), watching, nvtx.range("f {}", 1):
        assert (cuda(2) * 2).tolist() == [2, 2]


# ---- settings and libraries


def test_settings_of_a_cuda_build_are_kept():
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, benchmark_limit=3):
        assert torch.backends.cudnn.benchmark_limit == 3
    assert torch.backends.cudnn.benchmark_limit == 10
    torch.cuda.tunable.set_max_tuning_iterations(7)
    assert torch.cuda.tunable.get_max_tuning_iterations() == 7
    torch.cuda.tunable.set_filename("results.csv", insert_device_ordinal=True)
    assert torch.cuda.tunable.get_filename() == "results0.csv"
    assert torch.backends.cudnn.is_acceptable(cuda(1))
    assert torch.backends.cudnn.version() == 91900
    assert torch.backends.cusparselt.is_available()
    assert "sm_90" in torch.cuda.get_arch_list()


def test_a_gpu_without_hardware_is_idle():
    idle = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
    assert [getattr(torch.cuda, name)() for name in idle] == [0, 0, 0, 0, 0]
    x = cuda(1)
    assert torch.cuda.device_memory_used() == torch.cuda.memory_reserved()
    assert "MB GPU memory" in torch.cuda.list_gpu_processes()
    del x


REFUSED = {
    "real GPU's multiprocessors": lambda: torch.cuda.GreenContext.create(num_sms=8),
    "straight into a real GPU": lambda: torch.cuda.gds.gds_register_buffer(
        cuda(1).untyped_storage()
    ),
    "cuFileHandleRegister failed": lambda: torch._C._gds_register_handle(0),
    "no cudaGraph_t": lambda: kept_graph().raw_cuda_graph(),
}


def kept_graph():
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        cuda(1)
    return graph


@pytest.mark.parametrize("reason", REFUSED)
def test_what_needs_a_real_gpu_says_so(reason):
    with pytest.raises(NotImplementedError, match=reason):
        REFUSED[reason]()


def test_cudas_own_errors_have_their_words():
    with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)
    torch.cuda.check_error(0)


@pytest.mark.parametrize(
    ("kind", "of_block", "of_multiprocessor"),
    [("t4", 65536, 65536), ("h100", 232448, 233472), ("rtx-4090", 101376, 102400)],
)
def test_shared_memory_is_the_cards(kind, of_block, of_multiprocessor):
    virtual.disable()
    with virtual.virtual_gpus(1, kind):
        card = torch.cuda.get_device_properties(0)
    assert card.shared_memory_per_block_optin == of_block
    assert card.shared_memory_per_multiprocessor == of_multiprocessor
