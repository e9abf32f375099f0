"""CUDA graphs: what is captured is not done, and each replay does it, in the same tensors."""

import gc
import re

import pytest
import torch
from torch import nn

from anydevice import virtual

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


@pytest.fixture(autouse=True)
def machine():
    virtual.enable()
    torch.manual_seed(0)
    yield
    torch.cuda.set_stream(torch.cuda.default_stream())  # an error in a capture leaves it set


@pytest.fixture(autouse=True, scope="module")
def disabled_after():
    yield
    virtual.disable()


def captured(work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


def test_a_capture_changes_nothing_and_each_replay_does_it_once():
    x = torch.zeros(3, device="cuda")
    graph, doubled = captured(lambda: x.add_(1) * 2)
    assert x.tolist() == [0, 0, 0]
    graph.replay()
    graph.replay()
    assert x.tolist() == [2, 2, 2]
    assert doubled.tolist() == [4, 4, 4]


def test_a_replay_reads_what_its_inputs_hold_now():
    static = torch.zeros(2, device="cuda")
    graph, result = captured(lambda: (static + 1).cumsum(0)[1:].expand(2))
    static.copy_(torch.tensor([1.0, 2.0]))
    graph.replay()
    assert result.tolist() == [5, 5]


def test_each_replay_draws_random_numbers_anew():
    torch.cuda.manual_seed(1)
    graph, drawn = captured(lambda: torch.rand(2, device="cuda"))
    expected = [torch.rand(2, device="cuda").tolist() for _ in range(2)]  # none were drawn yet
    torch.cuda.manual_seed(1)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append(drawn.tolist())
    assert replayed == expected


@pytest.mark.parametrize("backend", ["FLASH", "EFFICIENT", "CUDNN"])
def test_backward_of_each_replay_knows_what_its_attention_dropped(backend):
    q, k, v, grad = torch.randn(4, 1, 2, 16, 8, device="cuda", dtype=torch.half)
    v.requires_grad_()

    def attend():
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.__members__[f"{backend}_ATTENTION"]):
            output = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        return output, torch.autograd.grad(output, v, grad)[0]

    graph, (output, of_v) = captured(attend)
    sums = []
    for _ in range(2):
        graph.replay()
        assert torch.allclose((of_v * v).sum(), (output * grad).sum(), atol=0.1)  # linear in v
        sums.append(output.sum().item())
    assert sums[0] != sums[1]


def network():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    return layers.cuda()


def step(layers, optimizer, batch):
    optimizer.zero_grad(set_to_none=True)
    loss = layers(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def test_a_whole_training_step_replayed_is_the_training_run():
    batches = [torch.randn(5, 4, device="cuda") for _ in range(4)]

    def trained():  # one step, so that the optimizer has its state before the capture
        layers = network()
        optimizer = torch.optim.Adam(layers.parameters(), lr=0.1, capturable=True)
        step(layers, optimizer, batches[0])
        torch.cuda.manual_seed(3)
        return layers, optimizer

    layers, optimizer = trained()
    plain = [step(layers, optimizer, batch).item() for batch in batches]

    layers, optimizer = trained()
    static = torch.zeros(5, 4, device="cuda")
    graph, loss = captured(lambda: step(layers, optimizer, static))
    replayed = []
    for batch in batches:
        static.copy_(batch)
        graph.replay()
        replayed.append(loss.item())
    assert replayed == plain


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_an_optimizer_that_cannot_be_captured_says_so():
    layers = network()
    optimizer = torch.optim.Adam(layers.parameters())
    step(layers, optimizer, torch.randn(5, 4, device="cuda"))
    with pytest.raises(RuntimeError, match="capturable"):
        captured(optimizer.step)


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_graphed_callables_give_the_modules_results_and_gradients():
    graphed, plain = network(), network()
    torch.cuda.make_graphed_callables(graphed, (torch.randn(5, 4, device="cuda"),))
    plain.load_state_dict(graphed.state_dict())
    batch = torch.randn(5, 4, device="cuda")
    for layers in (graphed, plain):
        torch.cuda.manual_seed(6)
        layers(batch).sum().backward()
    for ours, theirs in zip(graphed.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("copy", [lambda x: x.cpu(), lambda x: x.copy_(torch.ones(3))])
def test_a_copy_of_memory_that_is_not_pinned_cannot_be_captured(copy):
    x = torch.zeros(3, device="cuda")
    with pytest.raises(
        RuntimeError, match="during CUDA graph capture unless the CPU tensor is pin"
    ):
        captured(lambda: copy(x))


def test_pinned_memory_of_a_capture_is_the_graphs_own():
    def pinned():
        return torch.randn(8).pin_memory()

    seen = []

    def work():
        seen.extend((pinned().data_ptr(), pinned().data_ptr()))
        host = torch.ones(8, device="cuda")
        return host.copy_(pinned(), non_blocking=True)

    graph, copied = captured(work)
    assert seen[0] == seen[1]
    assert pinned().data_ptr() not in seen
    graph.replay()
    assert copied.isfinite().all()


def test_instantiate_is_for_a_graph_that_is_kept():
    for keep in (False, True):
        graph = torch.cuda.CUDAGraph(keep_graph=keep)
        x = torch.zeros(3, device="cuda")
        with torch.cuda.graph(graph):
            x.add_(1)
        if keep:
            graph.instantiate()
        else:
            with pytest.raises(RuntimeError, match="only when keep_graph=true"):
                graph.instantiate()


def test_a_graph_holds_a_seed_and_an_offset_on_the_device():
    def active():
        stats = torch.cuda.memory_stats()
        return [stats[f"{name}.all.current"] for name in ("active", "active_bytes")]

    gc.collect()  # what earlier tests left is not freed in between
    torch.cuda.synchronize()
    torch.rand(1, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    before = active()
    with torch.cuda.stream(stream):  # torch.cuda.graph() would free what earlier tests left
        graph.capture_begin()
        torch.rand(1, device="cuda")
        graph.capture_end()
    assert [new - old for new, old in zip(active(), before, strict=True)] == [2, 1024]
    graph.reset()
    assert active() == before


def test_each_state_of_a_generator_moves_on_by_what_was_drawn_from_it():
    def states(generator):
        return generator.graphsafe_get_state(), generator.clone_state()

    def draw(generator, first, second):
        generator.graphsafe_set_state(second)
        drawn = [torch.rand(5, device="cuda", generator=generator)]
        generator.graphsafe_set_state(first)
        return [*drawn, *(torch.rand(5, device="cuda", generator=generator) for _ in range(2))]

    torch.cuda.init()
    own, other = torch.cuda.default_generators[0], torch.Generator("cuda")
    for generator in (own, other):
        generator.manual_seed(0)
    mine, others = states(own), states(other)
    graph = torch.cuda.CUDAGraph()
    for state in mine:
        graph.register_generator_state(state)
    with torch.cuda.graph(graph):
        drawn = draw(own, *mine)
    for replays in range(1, 4):
        expected = draw(other, *others)
        graph.replay()
        assert [state.get_offset() for state in mine] == [8 * replays, 4 * replays]
        assert all(map(torch.equal, drawn, expected))


@pytest.mark.parametrize("reuse", [False, True])
def test_memory_of_another_stream_is_kept_until_the_capture_ends(reuse):
    torch.cuda.memory._set_allocator_settings(f"graph_capture_record_stream_reuse:{reuse}")
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(main):
            graph.capture_begin()
            data = torch.ones(8, device="cuda")
            address = data.data_ptr()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                kept = data + 2
                data.record_stream(side)
            del data
            main.wait_stream(side)
            again = torch.empty(8, device="cuda").data_ptr()
            kept.add_(1)
            graph.capture_end()
    finally:
        torch.cuda.memory._set_allocator_settings("graph_capture_record_stream_reuse:False")
    assert (again == address) == reuse


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_what_waits_for_the_device_cannot_be_captured(forbidden):
    x = torch.ones(3, device="cuda")
    with pytest.raises(torch.AcceleratorError, match="previous error during capture") as raised:
        captured(lambda: forbidden(x))
    assert str(raised.value.__context__).startswith(NOT_PERMITTED)
    assert not torch.cuda.is_current_stream_capturing()


HALVES = hasattr(torch.cuda.CUDAGraph, "capture_end_pre")  # torch 2.15: replay() instantiates
NOT_CAPTURED = "capture_end() must have been" if HALVES else "Called CUDAGraph::replay without"
ERRORS = {
    "CUDA graphs must be captured on a non-default stream": lambda graph: graph.capture_begin(),
    NOT_CAPTURED: lambda graph: graph.replay(),
    "Called CUDAGraph::pool() without a preceding": lambda graph: graph.pool(),
    "raw cudaGraph_t instance unless": lambda graph: graph.raw_cuda_graph(),
    "raw cudaGraphExec_t instance until": lambda graph: graph.raw_cuda_graph_exec(),
    "capture_end() called before capture_begin()": lambda graph: graph.capture_end(),
}


@pytest.mark.parametrize("text", ERRORS)
def test_wrong_use_reads_as_on_the_card(text):
    with pytest.raises(RuntimeError) as raised:
        ERRORS[text](torch.cuda.CUDAGraph())
    assert text in str(raised.value)


def test_a_graph_is_captured_once():
    graph, _ = captured(lambda: torch.zeros(1, device="cuda"))
    with (
        pytest.raises(RuntimeError, match="already owns a captured graph"),
        torch.cuda.graph(graph),
    ):
        pass
    graph.reset()
    with pytest.raises(RuntimeError, match=re.escape(NOT_CAPTURED)):
        graph.replay()


def test_an_empty_graph_is_warned_of():
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
        captured(lambda: None)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_capturing_stream_says_so():
    seen = []
    captured(lambda: seen.append(torch.cuda.is_current_stream_capturing()))
    assert seen == [True]
    assert not torch.cuda.is_current_stream_capturing()


def test_a_graphs_memory_is_in_a_pool_of_its_own_until_it_goes():
    gc.collect()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    graph, result = captured(lambda: torch.ones(1 << 20, device="cuda") * 2 + 1)
    pool = graph.pool()
    in_pool = torch.cuda.memory_snapshot(pool)
    assert {segment["segment_pool_id"] for segment in in_pool} == {pool}
    held = torch.cuda.memory_allocated()
    graph.replay()
    assert torch.cuda.memory_allocated() == held
    del result
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() > reserved  # the graph will need it again
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == reserved


def test_graphs_can_share_a_pool():
    pool = torch.cuda.graph_pool_handle()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool):
        x = torch.ones(4, device="cuda")
    with torch.cuda.graph(second, pool=pool):
        y = x * 3
    assert first.pool() == second.pool() == pool
    first.replay()
    second.replay()
    assert y.tolist() == [3, 3, 3, 3]


def test_graphs_that_share_a_pool_know_memory_by_its_address():
    pool, graphs = torch.cuda.graph_pool_handle(), [torch.cuda.CUDAGraph() for _ in range(3)]
    ones = torch.ones(1000, device="cuda")
    with torch.cuda.graph(graphs[0], pool=pool):
        twos, threes = ones + 1, ones + 2
    place = twos.data_ptr()
    with torch.cuda.graph(graphs[1], pool=pool):
        fives = twos + 3
        del twos
    with torch.cuda.graph(graphs[2], pool=pool):
        sevens = threes + 4
    assert sevens.data_ptr() == place
    for order, sums in (((0, 1, 2), (5, 7)), ((0, 2, 1), (10, 7))):
        for number in order:
            graphs[number].replay()
        assert (fives.mean().item(), sevens.mean().item()) == sums


def test_a_dump_names_the_ops(tmp_path):
    graph, _ = captured(lambda: torch.ones(2, device="cuda").mul_(2))
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "aten.mul_" in (tmp_path / "graph.dot").read_text()


@pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="torch 2.13 has it")
def test_the_accelerators_graph_is_the_same():
    graph, x = torch.accelerator.Graph(), torch.zeros(2, device="cuda")
    with torch.Stream("cuda"), graph:
        x += 1
    graph.replay()
    assert x.tolist() == [1, 1]


def test_what_outlives_the_gpus_goes_quietly_and_gives_its_pool_back(monkeypatch):
    errors = []
    monkeypatch.setattr("sys.unraisablehook", errors.append)
    pool = torch.cuda.MemPool()
    graph, result = captured(lambda: torch.ones(9, device="cuda") + 1)
    virtual.disable()
    del result, graph, pool
    gc.collect()
    assert not errors
    virtual.enable()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
