"""A virtual GPU refuses what a card refuses: wrong devices, dtypes, algorithms."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .own_process import run

pytestmark = pytest.mark.usefixtures("virtual_gpu")

KINDS = [nn.LSTM, nn.GRU, nn.RNN]


def cuda(*shape, **options):
    return torch.ones(*shape, device="cuda", **options)


def state(kind, tensor):
    return (tensor, tensor) if kind is nn.LSTM else tensor


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_an_index_into_nothing_is_refused_before_a_kernel_starts():
    with pytest.raises(IndexError, match="index is out of bounds for dimension with size 0"):
        cuda(10, 0)[:, [0, 1]]


# ---- devices


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_a_hidden_state_on_the_host_is_refused(kind, training):
    network = kind(3, 4).cuda().train(training)
    with pytest.raises(RuntimeError, match="Input and hidden tensors are not at the same device, "
                       "found input tensor at cuda:0 and hidden tensor at cpu"):  # fmt: skip
        network(cuda(2, 1, 3), state(kind, torch.zeros(1, 1, 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_network_and_its_input_must_be_on_one_device(kind):
    for network, x, found in [
        (kind(3, 4), cuda(2, 1, 3), "cuda:0 and parameter tensor at cpu"),
        (kind(3, 4).cuda(), torch.ones(2, 1, 3), "cpu and parameter tensor at cuda:0"),
    ]:
        with pytest.raises(RuntimeError, match=f"not at the same device, found .* {found}"):
            network(x)


def put(self, index, values, accumulate=False):
    self.index_put_((index,), values, accumulate)


def test_values_of_an_index_assignment_must_be_with_the_tensor():
    here, there = torch.tensor([0, 1]), torch.tensor([0, 1], device="cuda")
    for self, index, values in [
        (cuda(5), here, torch.ones(2)),
        (cuda(5), there, torch.ones(2)),
        (cuda(5, 3), there, torch.ones(2, 3)),
        (cuda(5), torch.tensor([True] * 5), torch.ones(5)),
        (torch.ones(5), here, cuda(2)),
    ]:
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
            self[index] = values
    with pytest.raises(RuntimeError, match="expected device cuda:0 but got device cpu for value"):
        put(cuda(5), there, torch.ones(2), accumulate=True)


def test_a_number_and_indices_of_the_host_may_be_assigned():
    x = torch.zeros(5, device="cuda")
    x[torch.tensor([0])] = torch.tensor(2.0)
    x[torch.tensor([1])] = cuda(1)
    x[x == 0] = 3.0
    assert x.tolist() == [2, 1, 3, 3, 3]
    host = torch.zeros(2)
    host[torch.tensor([1], device="cuda")] = torch.ones(1)
    assert host.tolist() == [0, 1]


# ---- dtypes


WITHOUT_KERNEL = {
    "addmm_cuda": lambda a: a @ a,
    "baddbmm_cuda": lambda a: torch.bmm(a[None], a[None]),
    "dot": lambda a: torch.dot(a[0], a[0]),
    "avg_pool2d_out_cuda_frame": lambda a: F.avg_pool2d(a[None, None], 2),
    "max_pool2d_with_indices_out_cuda_frame": lambda a: F.max_pool2d(a[None, None], 2),
    "fused_dropout": lambda a: F.dropout(a, 0.5),
    "lerp_cuda": lambda a: torch._foreach_lerp([a], [a], 0.5),
    "tanh_backward_cuda": lambda a: torch.ops.aten.tanh_backward(a, a),
    "embedding_backward": lambda a: torch.ops.aten.embedding_dense_backward(a, a[0], 3, -1, False),
}


@pytest.mark.parametrize("kernel", WITHOUT_KERNEL)
def test_whole_numbers_have_no_kernel(kernel):
    with pytest.raises(NotImplementedError, match=f"\"{kernel}\" not implemented for 'Long'"):
        WITHOUT_KERNEL[kernel](cuda(2, 2, dtype=torch.long))


def test_weights_of_another_dtype_are_what_cuda_did_not_expect():
    bag, here = nn.EmbeddingBag(4, 3, mode="sum").cuda(), torch.tensor([0, 1], device="cuda")
    with pytest.raises(RuntimeError, match=r"^expected scalar type Float but found Double$"):
        bag(here, here, per_sample_weights=cuda(2, dtype=torch.double))


def test_a_norms_weights_have_the_dtype_of_its_input():
    """A half-precision input with float32 weights, which the CPU takes."""
    x, weight = cuda(2, 4, dtype=torch.bfloat16), cuda(4)
    for norm in (
        lambda x, weight: F.layer_norm(x, (4,), weight),
        lambda x, weight: F.layer_norm(x, (4,), weight.to(x.dtype), weight),
        lambda x, weight: F.group_norm(x, 2, weight),
    ):
        with pytest.raises(RuntimeError, match=r"^expected scalar type BFloat16 but found Float$"):
            norm(x, weight)
        assert norm(x[:0], weight).shape == (0, 4)  # no kernel runs
        with torch.autocast("cuda"):
            assert norm(x, weight).dtype is torch.float32


def test_the_text_names_cudas_kernel():
    image = cuda(1, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(NotImplementedError, match=r"upsample_bilinear2d_out_frame.*'Byte'"):
        F.interpolate(image, size=8, mode="bilinear")
    with pytest.raises(RuntimeError, match="supported for Long"):
        F.conv2d(image.long(), image.long())
    with pytest.raises(NotImplementedError, match=r"lu_factor_cusolver.*'Half'"):
        torch.linalg.det(cuda(2, 2).half())
    whole = cuda(2, 3, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="addmm_cuda"):
        torch.mm(whole, whole.T, out=cuda(2, 2, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.long])
def test_sparse_products_are_in_float_or_double(dtype):
    sparse, dense = cuda(2, 2).to(dtype).to_sparse(), cuda(2, 2).to(dtype)
    for call in (torch.sparse.mm, torch.mm, lambda a, b: torch.sparse.addmm(b, a, b),
                 lambda a, b: torch.mv(a, b[0])):  # fmt: skip
        with pytest.raises(NotImplementedError, match='"addmm_sparse_cuda" not implemented for'):
            call(sparse, dense)
    assert torch.sparse.mm(sparse.float(), dense.float()).tolist() == [[2, 2], [2, 2]]


def test_the_largest_of_a_bag_has_no_backward_in_bfloat16():
    table = cuda(3, 2, dtype=torch.bfloat16).requires_grad_()
    bag = torch.tensor([[0, 1]], device="cuda")
    F.embedding_bag(bag, table, mode="sum").sum().backward()
    with pytest.raises(NotImplementedError, match="embedding_bag_backward_cuda_max"):
        F.embedding_bag(bag, table, mode="max").sum().backward()


def test_complex_numbers_are_summed_and_not_multiplied_by_index():
    x, there = cuda(3, dtype=torch.complex64), torch.tensor([1, 1], device="cuda")
    assert x.scatter_reduce(0, there, x[:2], "sum").tolist() == [1, 3, 1]
    for multiply in (
        lambda: x.scatter_reduce(0, there, x[:2], "prod"),
        lambda: x.scatter_(0, there, x[:2], reduce="multiply"),
        lambda: x.scatter_(0, there, 2, reduce="multiply"),
    ):
        with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
            multiply()


def test_autocast_casts_first():
    with torch.autocast("cuda"):
        assert (cuda(2, 2) @ cuda(2, 2)).dtype is torch.float16


@pytest.mark.parametrize("name", ["sqrt", "log", "cosh", "sigmoid", "angle", "prod"])
def test_half_precision_complex_numbers_are_computed(name):
    x = torch.tensor([0.5 + 1j, 2 - 1j], dtype=torch.complex32, device="cuda")
    expected = getattr(torch, name)(x.cpu().to(torch.complex64))
    assert torch.allclose(getattr(torch, name)(x).cpu().to(expected.dtype), expected, rtol=1e-2)


# ---- deterministic algorithms


def test_what_has_no_deterministic_algorithm_is_refused(deterministic):
    for caller, call in {
        "_histc_cuda with floating point input": lambda: torch.histc(cuda(4)),
        "median CUDA with indices output": lambda: cuda(4).median(0),
        "_bincount_cuda": lambda: torch.bincount(cuda(2, dtype=torch.long), weights=cuda(2)),
        "adaptive_avg_pool2d_backward_cuda": lambda: (
            F.adaptive_avg_pool2d(cuda(1, 1, 4, 4, requires_grad=True), 2).sum().backward()
        ),
    }.items():
        with pytest.raises(RuntimeError, match=f"{caller} does not have a deterministic"):
            call()
    assert torch.histc(cuda(4, dtype=torch.long), 2).tolist() == [0, 4]
    assert cuda(4).median() == 1


def test_warn_only_warns(deterministic):
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="_histc_cuda"):
        torch.histc(cuda(4))


def test_memory_that_nobody_wrote_to_is_filled(deterministic):
    assert torch.empty(2, device="cuda").isnan().all()
    assert torch.empty_strided((2,), (1,), device="cuda").isnan().all()
    assert torch.empty(1, device="cuda", dtype=torch.int32).item() == 2**31 - 1
    grown = cuda(2).resize_(4)
    assert grown[:2].tolist() == [1, 1]
    assert grown[2:].isnan().all()


# ---- hollow GPUs


def test_a_hollow_gpu_refuses_the_same():
    assert run("""
virtual.enable(hollow=True)
gpu = lambda *s: torch.ones(*s, device="cuda")
def says(call):
    try:
        call()
    except Exception as error:
        return str(error)[:46]
lstm, whole = torch.nn.LSTM(3, 4).cuda(), gpu(2, 2).long()
found = [
    says(lambda: lstm(gpu(2, 1, 3), (torch.zeros(1, 1, 4),) * 2)), says(lambda: whole @ whole),
    says(lambda: gpu(5).__setitem__(torch.tensor([0, 1]), torch.ones(2))),
]
torch.use_deterministic_algorithms(True)
print(json.dumps([*found, says(lambda: gpu(4).median(0))]))
""") == [
        "Input and hidden tensors are not at the same d",
        "\"addmm_cuda\" not implemented for 'Long'",
        "Expected all tensors to be on the same device,",
        "median CUDA with indices output does not have ",
    ]


# ---- factors of lists


def test_a_factor_of_a_list_is_a_number_of_the_host_or_with_the_list():
    x, here = [cuda(3), cuda(2)], torch.tensor(2.0)
    assert [t.sum().item() for t in torch._foreach_mul(x, here)] == [6, 4]
    assert [t.sum().item() for t in torch._foreach_div(x, here.cuda())] == [1.5, 1]
    add = torch.ops.aten._foreach_add.Tensor
    with pytest.raises(RuntimeError, match="expected to be on cuda:0 but is on cpu"):
        add(x, here)
    assert add(x, here.double())[1].sum().item() == 6  # an op for each


def test_a_list_is_copied_between_devices():
    here, there = [torch.zeros(3), torch.zeros(2)], [cuda(3), cuda(2)]
    torch._foreach_copy_(here, there)
    torch._foreach_copy_(there, [t * 2 for t in here])
    assert [t.tolist() for t in there] == [[2, 2, 2], [2, 2]]


def test_an_output_of_one_element_is_with_its_input():
    with pytest.raises(RuntimeError, match="to be on the same device"):
        torch.all(cuda(1), out=torch.empty((), dtype=torch.bool))
