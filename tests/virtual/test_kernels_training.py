"""What a training step is made of, on a virtual GPU as on the CPU: losses, norms, mixed precision,
fused optimizers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.virtual.against_cpu import numbers, same

pytestmark = pytest.mark.usefixtures("seeded")

HALVES = [torch.float16, torch.bfloat16]
ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


# ---- softmax, as autocast calls it ----


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function", [F.softmax, F.log_softmax])
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_of_halves_in_float(function, dim, dtype):
    x = numbers(3, 5, dtype=dtype)
    same(lambda x: function(x, dim, dtype=torch.float32), x, within=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", HALVES)
def test_softmax_under_autocast_is_float(dtype):
    x = torch.randn(3, 5, device="cuda", dtype=dtype)
    with torch.autocast("cuda", dtype):
        assert F.softmax(x, 1).dtype == torch.float32
        assert F.log_softmax(x, 1).dtype == torch.float32


# ---- mixed precision and optimizers ----


def network():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("dtype", HALVES)
def test_mixed_precision_with_a_gradient_scaler(dtype):
    def program(network, x, labels):
        device = x.device.type
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        scaler = torch.amp.GradScaler(device)
        losses = []
        for _ in range(3):
            with torch.autocast(device, dtype):
                loss = F.cross_entropy(network(x), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return losses, [p.detach() for p in network.parameters()], scaler.get_scale()

    labels = torch.randint(4, (5,))
    same(program, network(), torch.randn(5, 6), labels, outputs_within=ROUNDING[dtype])


def test_a_gradient_that_overflows_skips_the_step_and_halves_the_scale():
    parameter = nn.Parameter(torch.ones(3, device="cuda"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    scaler.scale((parameter * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [1, 1, 1]
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}])
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_fused_and_foreach_optimizers(optimizer, options, tensor_lr):
    if tensor_lr and (optimizer == "Adagrad" or "foreach" in options):
        pytest.skip("takes a learning rate that is a number")
    if optimizer == "Adagrad" and "fused" in options and torch.__version__ < "2.13":
        pytest.skip("PyTorch had no fused Adagrad on CUDA yet")

    def program(network, x):
        lr = torch.tensor(0.1, device=x.device) if tensor_lr else 0.1
        stepper = getattr(torch.optim, optimizer)(network.parameters(), lr=lr, **options)
        for _ in range(3):
            stepper.zero_grad()
            network(x).square().sum().backward()
            stepper.step()
        return [p.detach() for p in network.parameters()]

    same(program, network(), torch.randn(5, 6))


# ---- normalisation ----


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_batch_norm(training, memory_format):
    norm = nn.BatchNorm2d(4).train(training)
    x = torch.randn(5, 4, 3, 3).to(memory_format=memory_format).requires_grad_()
    same(lambda norm, x: (norm(x), norm.running_mean, norm.running_var), norm, x)


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_of_halves_with_float_weights(dtype):
    x = numbers(5, 4, 3, 3, dtype=dtype)
    same(lambda norm, x: norm(x), nn.BatchNorm2d(4), x, within=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.LayerNorm(6), nn.LayerNorm(6, bias=False)])
def test_halves_are_normalised_in_float(norm, dtype):
    x = torch.randn(5, 4, 3, 6, dtype=dtype)
    gradients = []
    for to in ({"dtype": torch.float32}, {"device": "cuda", "dtype": dtype}):
        there, given = copy.deepcopy(norm).to(**to), x.to(**to).requires_grad_()
        there(given).square().mul(given.cos()).sum().backward()
        gradients.append([tensor.grad for tensor in (given, *there.parameters())])
    for expected, got in zip(*gradients, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.float().cpu(), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_statistics_of_halves_are_float(dtype):
    x = torch.randn(5, 4, 3, device="cuda", dtype=dtype)
    weight = torch.rand(4, device="cuda", dtype=dtype)
    mean, var = torch.zeros_like(weight), torch.ones_like(weight)
    layer = torch.native_layer_norm(x, [3], None, None, 1e-5)
    for training in (True, False):
        batch = torch.native_batch_norm(x, weight, weight, mean, var, training, 0.1, 1e-5)
        for output, *statistics in (layer, batch):
            assert output.dtype == dtype
            assert all(each.dtype == torch.float32 and each.numel() for each in statistics)
        assert mean.count_nonzero() == 4  # kept from the training
    torch.testing.assert_close(batch[2], (var.float() + 1e-5).rsqrt())


def test_gradients_of_gradients_of_batch_norm():
    def program(norm, x):
        (gradient,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
        return gradient

    same(program, nn.BatchNorm2d(4), numbers(5, 4, 3, 3), within=1e-4, outputs_within=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_rms_norm(dtype):
    x = numbers(3, 8, dtype=dtype)
    same(lambda norm, x: norm(x), nn.RMSNorm(8, dtype=dtype), x, within=ROUNDING[dtype])


def test_the_fused_backward_of_rms_norm():
    x, weight = numbers(3, 8, dtype=torch.float64), numbers(8, dtype=torch.float64)
    grad = torch.randn(3, 8, dtype=torch.float64)
    expected = torch.autograd.grad(F.rms_norm(x, [8], weight, 1e-5), (x, weight), grad)
    deviation = (x.detach().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    arguments = [t.detach().cuda() for t in (grad, x, deviation, weight)]
    found = torch.ops.aten._fused_rms_norm_backward(
        *arguments[:2], [8], *arguments[2:], [True, True]
    )
    torch.testing.assert_close([t.cpu() for t in found], list(expected))


# ---- the pieces of SyncBatchNorm: two processes' halves make one whole ----


@pytest.fixture
def whole():
    return torch.randn(6, 4, 3, 3, device="cuda")


def test_statistics_of_parts_gather_to_those_of_the_whole(whole):
    parts = [torch.batch_norm_stats(part, 1e-5) for part in (whole[:2], whole[2:])]
    means, deviations = (torch.stack(t) for t in zip(*parts, strict=True))
    counts = torch.tensor([2 * 9.0, 4 * 9.0], device="cuda")
    running_mean, running_var = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    mean, deviation = torch.batch_norm_gather_stats_with_counts(
        whole, means, deviations, running_mean, running_var, 0.1, 1e-5, counts
    )
    norm = nn.BatchNorm2d(4).cuda()
    expected = norm(whole)
    torch.testing.assert_close(running_mean, norm.running_mean)
    torch.testing.assert_close(running_var, norm.running_var)
    found = torch.batch_norm_elemt(whole, norm.weight, norm.bias, mean, deviation, 1e-5)
    torch.testing.assert_close(found, expected)


def test_gradients_of_parts_reduce_to_those_of_the_whole(whole):
    x = whole.clone().requires_grad_()
    norm = nn.BatchNorm2d(4).cuda()
    grad = torch.randn_like(x)
    norm(x).backward(grad)
    mean, deviation = torch.batch_norm_stats(whole, 1e-5)
    sum_grad, sum_centred, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
        grad, whole, mean, deviation, norm.weight, True, True, True
    )
    torch.testing.assert_close(grad_weight, norm.weight.grad)
    torch.testing.assert_close(grad_bias, norm.bias.grad)
    count = torch.tensor([whole.numel() // 4], dtype=torch.int32, device="cuda")
    found = torch.batch_norm_backward_elemt(
        grad, whole, mean, deviation, norm.weight, sum_grad, sum_centred, count
    )
    torch.testing.assert_close(found, x.grad)


# ---- CTC ----


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_loss(reduction):
    def program(scores, targets):
        lengths = torch.tensor([10, 9, 8]), torch.tensor([4, 3, 2])
        return F.ctc_loss(scores.log_softmax(-1), targets, *lengths, reduction=reduction)

    same(program, numbers(10, 3, 6), torch.randint(1, 6, (3, 4)))


def test_ctc_loss_of_targets_laid_end_to_end():
    def program(scores, targets):
        return F.ctc_loss(scores.log_softmax(-1), targets, (10, 9, 8), (4, 3, 2))

    same(program, numbers(10, 3, 6), torch.randint(1, 6, (9,), dtype=torch.int32))


def test_cudnns_ctc_loss_gives_its_gradient_at_once():
    scores, targets = numbers(10, 3, 6), torch.randint(1, 6, (9,), dtype=torch.int32)
    log_probs = scores.log_softmax(-1)
    lengths = (10, 9, 8), (4, 3, 2)
    loss, gradient = torch._cudnn_ctc_loss(
        log_probs.detach().cuda(), targets, *lengths, 0, True, False
    )
    expected = F.ctc_loss(log_probs, targets, *lengths, reduction="none")
    (expected_gradient,) = torch.autograd.grad(expected.sum(), log_probs)
    torch.testing.assert_close([loss.cpu(), gradient.cpu()], [expected, expected_gradient])
