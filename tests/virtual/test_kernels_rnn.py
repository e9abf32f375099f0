"""Recurrent networks on a virtual GPU give the CPU's numbers: networks, cells, packed input."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.virtual.against_cpu import numbers, same

pytestmark = pytest.mark.usefixtures("seeded")

KINDS = [nn.LSTM, nn.GRU, nn.RNN]
ROUNDING = 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_network_gives_the_cpus_numbers(kind, layers, bidirectional, batch_first):
    network = kind(5, 7, layers, bidirectional=bidirectional, batch_first=batch_first)
    same(lambda network, x: network(x), network, numbers(4, 3, 5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"bias": False}, {"nonlinearity": "relu"}, {"proj_size": 3}])
def test_its_options_do_not_matter(kind, options):
    if "nonlinearity" in options and kind is not nn.RNN:
        pytest.skip("only nn.RNN has a choice of nonlinearity")
    if "proj_size" in options and kind is not nn.LSTM:
        pytest.skip("only nn.LSTM has projections")
    same(lambda network, x: network(x), kind(5, 7, **options), numbers(4, 3, 5))


@pytest.mark.parametrize("kind", KINDS)
def test_double_precision_too(kind):
    same(
        lambda network, x: network(x),
        kind(5, 7, 2, dtype=torch.float64),
        numbers(4, 3, 5, dtype=torch.float64),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind):
    def program(network, x):
        packed = pack_padded_sequence(x, torch.tensor([4, 3, 1]), batch_first=True)
        output, state = network(packed)
        return pad_packed_sequence(output, batch_first=True)[0], state

    network = kind(5, 7, 2, bidirectional=True, batch_first=True)
    # Some processors sum a product of few rows in another order than one of many.
    same(program, network, numbers(3, 4, 5), within=ROUNDING, outputs_within=ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"bias": False, "bidirectional": True}, {"proj_size": 3}])
def test_autocast_casts_weights_and_input_to_half_precision(kind, options):
    if "proj_size" in options and kind is not nn.LSTM:
        pytest.skip("only nn.LSTM has projections")
    network = kind(5, 7, 2, **options).cuda()
    in_half = copy.deepcopy(network).half()
    x = numbers(4, 3, 5).cuda()
    for dtype in (torch.float16, torch.bfloat16):  # cuDNN's is float16 either way
        network.zero_grad()
        in_half.zero_grad()
        with torch.autocast("cuda", dtype):
            output, _ = network(x)
        expected, _ = in_half(x.half())
        assert output.dtype == torch.float16
        assert torch.equal(output, expected)
        output.float().sum().backward()
        expected.float().sum().backward()
        for mine, theirs in zip(network.parameters(), in_half.parameters(), strict=True):
            assert mine.grad.dtype == torch.float32
            assert torch.equal(mine.grad, theirs.grad.float())


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_takes_an_input_a_state_and_weights_of_different_types(kind):
    network = kind(5, 7).cuda()
    x, state = numbers(4, 3, 5).cuda().half(), numbers(1, 3, 7).cuda()
    state = (state, state) if kind is nn.LSTM else state
    with torch.autocast("cuda"):
        output, _ = network(x)  # as it comes from a layer before
        again, _ = network(x.float(), state)
    assert output.dtype == again.dtype == torch.float16
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="are not the same dtype"):
        network(x.double())


def test_the_state_given_is_the_state_used():
    same(
        lambda network, x, h, c: network(x, (h, c)),
        nn.LSTM(5, 7),
        numbers(4, 3, 5),
        numbers(1, 3, 7),
        numbers(1, 3, 7),
    )


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind, bias):
    same(lambda cell, x: cell(x), kind(5, 7, bias=bias), numbers(3, 5), within=ROUNDING)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_gradients_of_gradients_of_cells(kind):
    def program(cell, x):
        output = cell(x)
        output = output[0] if isinstance(output, tuple) else output
        (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return gradient

    same(
        program,
        kind(5, 7, dtype=torch.float64),
        numbers(3, 5, dtype=torch.float64),
        within=ROUNDING,
        outputs_within=ROUNDING,
    )


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_cells_are_rounded_once(kind, dtype):
    cell, x = kind(5, 7).cuda(), torch.randn(3, 5).cuda()
    exact, rounded = cell(x), cell.to(dtype)(x.to(dtype))
    exact, rounded = (r[0] if isinstance(r, tuple) else r for r in (exact, rounded))
    assert rounded.dtype == dtype
    assert torch.allclose(rounded.float(), exact, atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_in_inference_mode(kind, virtual_gpu):
    network = kind(3, 4, bidirectional=True)
    gradients = []
    for device in ("cpu", "cuda"):
        there, x = copy.deepcopy(network).to(device), torch.ones(2, 2, 3, device=device)
        output = there(x.requires_grad_())[0]
        with torch.inference_mode():
            output.backward(torch.ones_like(output))
        gradients.append([tensor.grad for tensor in (x, *there.parameters())])
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=ROUNDING)
        assert got.is_inference() == expected.is_inference()


def test_dropout_between_layers_is_drawn_anew_and_backward_knows_it():
    network = nn.LSTM(5, 7, 2, dropout=0.5).cuda()
    x = torch.randn(4, 3, 5, device="cuda", requires_grad=True)
    first, second = network(x)[0], network(x)[0]
    assert not torch.equal(first, second)
    first.sum().backward()
    assert x.grad.abs().sum() > 0
    network.eval()
    assert torch.equal(network(x)[0], network(x)[0])


def test_parameters_are_flattened_into_one_buffer():
    network = nn.LSTM(5, 7).cuda()
    network.flatten_parameters()
    storages = {p.untyped_storage().data_ptr() for p in network.parameters()}
    assert len(storages) == 1


def test_parameters_in_several_buffers_are_warned_of():
    network, x = nn.GRU(5, 7).cuda(), torch.ones(2, 1, 5, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network(x)
    network._flat_weights[0].data = network.weight_ih_l0.detach().clone()
    with pytest.warns(UserWarning, match="not part of single contiguous chunk of memory"):
        network(x)


def test_an_lstm_learns_as_on_the_cpu():
    def program(network, x):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = network(x)[0].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    same(program, nn.LSTM(5, 7, 2, bidirectional=True), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_dropout_of_everything_between_layers_leaves_zeros(kind):
    network = kind(3, 4, 2, dropout=1.0, bias=False).cuda()
    x = torch.ones(2, 1, 3, device="cuda", requires_grad=True)
    output, _ = network(x)
    output.sum().backward()
    assert output.eq(0).all()
    assert x.grad.eq(0).all()
