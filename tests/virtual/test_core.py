"""Tensors on a virtual GPU: plain tensors on cuda:0 that behave as the card's."""

import copy
import io
import threading

import pytest
import torch
from torch import nn

from anydevice import virtual
from anydevice.errors import UsageError
from anydevice.virtual import events

pytestmark = pytest.mark.usefixtures("seeded")


def cuda(*shape, **options):
    return torch.ones(shape, device="cuda", **options)


def test_a_tensor_is_a_plain_tensor_on_cuda():
    result = cuda(3) + 1
    assert type(result) is torch.Tensor
    assert result.device == torch.device("cuda:0")
    assert result.tolist() == [2, 2, 2]


def test_what_is_written_through_a_view_is_seen_in_its_base():
    base = torch.zeros(2, 3, device="cuda")
    base[1].add_(5)
    base.t()[0] = 7
    assert base.tolist() == [[7, 0, 0], [7, 5, 5]]


def test_a_view_made_by_a_cpu_kernel_shares_the_storage():
    base = torch.zeros(4, device="cuda")
    real = torch.view_as_real(torch.complex(base, base))
    part = base.unfold(0, 2, 2).diagonal()
    part.fill_(1)
    assert base.tolist() == [1, 0, 0, 1]
    assert real.device.type == "cuda"


def test_out_is_resized_in_its_own_storage():
    out = torch.empty(0, device="cuda")
    result = torch.add(cuda(5), 1, out=out)
    assert result is out
    assert out.tolist() == [2] * 5
    assert out.untyped_storage().device.type == "cuda"


def test_a_tensor_given_twice_is_one_tensor_to_the_kernel():
    x = cuda(3)
    torch.mul(x, 3, out=x)
    assert x.add_(x).tolist() == [6, 6, 6]


def test_freed_memory_is_counted_back():
    before = torch.cuda.memory_allocated()
    x = cuda(1000) * 2
    assert torch.cuda.memory_allocated() == before + 4096
    del x
    assert torch.cuda.memory_allocated() == before


def test_a_view_keeps_its_bytes_alive():
    x = torch.arange(10.0, device="cuda")[5:] * 1
    view = x.view(5)[3:]
    del x
    assert view.tolist() == [8, 9]


def test_parameters_keep_their_identity_when_a_module_moves():
    network = nn.Linear(2, 2)
    before = [id(parameter) for parameter in network.parameters()]
    network.cuda()
    assert [id(parameter) for parameter in network.parameters()] == before
    assert all(parameter.is_cuda for parameter in network.parameters())


def test_a_training_run_gives_the_cpus_loss_bit_for_bit():
    def losses(device):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(3456, 10))
        network.to(device)
        optimizer = torch.optim.Adam(network.parameters(), foreach=True)
        images, labels = torch.randn(8, 1, 28, 28).to(device), torch.arange(8).to(device)
        for _ in range(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            yield loss.item()

    assert list(losses("cuda")) == list(losses("cpu"))


ERRORS = {
    "Expected all tensors to be on the same device, but got mat1 is on cpu, different from other "
    "tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)": lambda: torch.addmm(
        cuda(3), torch.ones(3, 3), cuda(3, 3)
    ),
    "Expected all tensors to be on the same device, but found at least two devices, "
    "cuda:0 and cpu!": lambda: cuda(3) + torch.ones(3),
    "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the "
    "same": lambda: nn.Conv2d(1, 1, 5, 2).cuda()(torch.ones(16, 1, 8, 8)),
    "CUDA error: invalid device ordinal": lambda: torch.ones(1, device="cuda:9"),
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
    "host memory first.": lambda: cuda(1).numpy(),
    "indices should be either on cpu or on the same device as the indexed tensor (cpu)": lambda: (
        torch.ones(3)[cuda(1, dtype=torch.long)]
    ),
    "masked_fill_: Expected inputs to be on same device": lambda: torch.ones(2).masked_fill(
        torch.ones(2) > 0, cuda()
    ),
    "Expected a 'cuda' device type for generator but found 'cpu'": lambda: torch.rand(
        2, device="cuda", generator=torch.Generator()
    ),
}


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_reads_as_on_the_card(text):
    with pytest.raises((RuntimeError, TypeError)) as raised:
        ERRORS[text]()
    assert text in str(raised.value)


def test_a_tensor_of_the_host_stays_there():
    host = torch.tensor(1.0)
    with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
        host.add_(cuda())
    assert host.is_cpu


def test_an_op_without_a_cuda_kernel_raises_pytorchs_own_error():
    with pytest.raises(NotImplementedError, match="Could not run 'aten::_mkldnn_transpose'"):
        torch._mkldnn_transpose(cuda(2, 2), 0, 1)


def test_a_host_scalar_mixes_as_on_the_card():
    assert (cuda(2) + torch.tensor(1.0)).tolist() == [2, 2]
    assert torch.where(cuda(2) > 0, cuda(2), torch.tensor(0.0)).tolist() == [1, 1]
    assert cuda(3)[torch.tensor([0, 2])].tolist() == [1, 1]


LAYOUTS = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((1, 1)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sparse_tensor_has_its_members_on_the_gpu(layout):
    dense = torch.eye(4, device="cuda")
    sparse = LAYOUTS[layout](dense)
    assert sparse.device.type == "cuda"
    assert sparse.values().device.type == "cuda"
    assert torch.equal(sparse.to_dense(), dense)
    assert torch.equal(sparse.cpu().to_dense(), dense.cpu())


def test_a_sparse_gradient_is_applied():
    embedding = nn.Embedding(5, 2, sparse=True).cuda()
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([1, 3], device="cuda")).sum().backward()
    torch.optim.SparseAdam(embedding.parameters()).step()
    changed = (embedding.weight != before).any(1)
    assert changed.tolist() == [False, True, False, True, False]


@pytest.mark.filterwarnings("ignore")
def test_nested_and_quantized_tensors_live_on_the_gpu():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda")
    assert [part.tolist() for part in (nested * 2).unbind()] == [[2, 2], [2, 2, 2]]
    quantized = torch.quantize_per_tensor(cuda(3), 0.5, 0, torch.qint8)
    assert quantized.is_cuda
    assert quantized.dequantize().tolist() == [1, 1, 1]


def test_conjugate_and_negative_views_are_kept():
    x = torch.tensor([1 + 2j], device="cuda")
    assert x.conj().is_conj()
    assert x.conj().imag.is_neg()
    assert x.conj().resolve_conj().tolist() == [1 - 2j]


def test_storages_copies_and_files():
    assert copy.deepcopy(nn.Linear(2, 2).cuda()).weight.is_cuda
    assert cuda(2).untyped_storage().resize_(64).size() == 64
    file = io.BytesIO()
    torch.save(cuda(3), file)
    file.seek(0)
    assert torch.load(file).is_cuda
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [1, 1, 1]


def test_streams_and_events_are_there():
    stream, start, end = torch.cuda.Stream(), *(torch.cuda.Event(True) for _ in range(2))
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        start.record()
        cuda(10).sum()
        end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0
    assert torch.cuda.current_stream() != stream


def test_backward_runs_in_any_thread():
    results = []

    def work():
        x = cuda(3, requires_grad=True)
        (x * 2).sum().backward()
        results.append(x.grad.tolist())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[2, 2, 2]] * 8


def test_a_backward_whose_graph_another_thread_built():
    x = cuda(3, requires_grad=True)
    y, gradient = x * 2, cuda(3)
    thread = threading.Thread(target=lambda: y.backward(gradient))
    thread.start()
    thread.join()
    assert x.grad.tolist() == [2, 2, 2]


def test_autocast_and_a_grad_scaler():
    network = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    with torch.autocast("cuda", dtype=torch.float16):
        output = network(cuda(2, 4))
    assert output.dtype == torch.float16
    scaler.scale(output.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0


def test_double_backward_and_func():
    x = cuda(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    gradient.sum().backward()
    assert x.grad.tolist() == [6, 6, 6]
    jacobian = torch.func.jacrev(lambda value: value**2)(cuda(2))
    assert jacobian.tolist() == [[2, 0], [0, 2]]
    assert torch.vmap(torch.dot)(cuda(2, 3), cuda(2, 3)).tolist() == [3, 3]


def test_events_name_the_users_line():
    heard = []
    x = torch.ones(4)
    with events.listening(heard.append):
        y = x.cuda()
        y.sum().item()
        x.pin_memory().to("cuda", non_blocking=True)
        y[y > 0]
    transfers = [event for event in heard if event.kind == "transfer"]
    assert [(event.bytes, event.pinned, event.blocking) for event in transfers] == [
        (16, False, True),
        (4, False, True),
        (16, True, False),
    ]
    assert {event.file for event in heard} == {__file__}
    waits = [event.op for event in heard if event.kind == "synchronise"]
    assert waits == ["aten::copy_", "aten::_local_scalar_dense", "aten::index"]


def test_nothing_is_heard_when_nobody_listens():
    heard = []
    with events.listening(heard.append):
        pass
    cuda(3).cpu()
    assert heard == []


def test_enabling_the_same_again_changes_nothing_and_another_is_refused():
    virtual.enable()
    with pytest.raises(UsageError, match="expected the 1 virtual GPU of kind NVIDIA H100"):
        virtual.enable(gpus=2)
