"""Random numbers of a virtual GPU are the card's: PyTorch's published ones, and a NumPy model's."""

from __future__ import annotations

import copy
import tempfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ..forked import python
from .philox_model import Card

pytestmark = pytest.mark.usefixtures("seeded")

ONE_WAVE = 132 * 2048  # threads of an H100; beyond, a thread makes more than one element
SIZES = [1, 7, 257, 4096, 65537, ONE_WAVE + 5, 4 * ONE_WAVE + 1000]


def offset() -> int:
    return torch.cuda.default_generators[0].get_offset()


def test_seed_0_gives_the_published_numbers():
    assert torch.rand(4, device="cuda").tolist() == pytest.approx(
        [0.3990, 0.5167, 0.0249, 0.9401], abs=5e-5
    )
    torch.manual_seed(0)
    assert torch.randn(4, device="cuda").tolist() == pytest.approx(
        [-0.9247, -0.4253, -2.6438, 0.1452], abs=5e-5
    )


@pytest.mark.parametrize("numel", SIZES)
def test_uniform_numbers_are_the_models_bit_for_bit(numel):
    card = Card(seed=0)
    for _ in range(2):
        assert np.array_equal(torch.rand(numel, device="cuda").cpu().numpy(), lowered(card, numel))
        assert offset() == card.offset


def lowered(card: Card, numel: int) -> np.ndarray:
    drawn = card.uniform(numel)  # in (0, 1]; torch.rand is in [0, 1)
    return np.where(drawn == 1, np.float32(0), drawn)


@pytest.mark.parametrize("numel", SIZES)
def test_doubles_take_64_bits_each(numel):
    card = Card(seed=0)
    drawn = torch.rand(numel, device="cuda", dtype=torch.float64).cpu().numpy()
    assert np.array_equal(drawn, card.uniform_double(numel))
    assert offset() == card.offset


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_a_float(dtype):
    rounded = torch.from_numpy(Card(seed=0).uniform(1000)).to(dtype)
    rounded[rounded == 1] = 0
    assert torch.equal(torch.rand(1000, device="cuda", dtype=dtype).cpu(), rounded)


def test_a_range_is_multiplied_and_added_in_one_rounding():
    drawn = Card(seed=0).uniform(257).astype(np.float64) * 5 - 2
    found = torch.empty(257, device="cuda").uniform_(-2, 3).cpu().numpy()
    assert np.array_equal(found, drawn.astype(np.float32))


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_are_the_models_but_for_the_last_digits(numel, dtype):
    found = torch.randn(numel, device="cuda", dtype=dtype).cpu().double().numpy()
    if dtype is torch.float32:
        assert np.allclose(found, Card(seed=0).normal(numel), rtol=0, atol=3e-6)
    assert offset() == 4 * ((numel - 1) // (Card(0).grid(numel) * found_each(dtype)) + 1)


def found_each(dtype: torch.dtype) -> int:
    return 2 if dtype is torch.float64 else 4


@pytest.mark.parametrize("numel", SIZES)
def test_small_ranges_of_integers_take_32_bits_and_large_ones_64(numel):
    card = Card(seed=0)
    small = torch.randint(-5, 1000, (numel,), device="cuda").cpu().numpy()
    assert np.array_equal(small, card.words(numel)[:, 0].astype(np.int64) % 1005 - 5)
    large = torch.randint(0, 1 << 40, (numel,), device="cuda").cpu().numpy()
    assert np.array_equal(large, (card.integers(numel) % np.uint64(1 << 40)).astype(np.int64))
    assert offset() == card.offset


def test_random_fills_with_what_the_dtype_holds():
    card = Card(seed=0)
    found = torch.empty(99, device="cuda", dtype=torch.int64).random_()
    assert np.array_equal(found.cpu().numpy(), card.integers(99) % np.uint64(1 << 63))
    found = torch.empty(99, device="cuda", dtype=torch.uint8).random_()
    assert np.array_equal(found.cpu().numpy(), card.words(99)[:, 0] % 256)
    found = torch.empty(99, device="cuda", dtype=torch.int64).random_(-(1 << 63), None)
    assert np.array_equal(found.cpu().numpy(), card.integers(99).astype(np.int64))


def test_memory_that_is_not_contiguous_is_filled_in_the_order_of_its_strides():
    drawn = lowered(Card(seed=0), 12)
    whole = torch.zeros(4, 6, device="cuda")
    whole.t()[:3].uniform_()  # rows of 6 of which 3 are taken: strides (1, 6)
    assert np.array_equal(whole[:, :3].cpu().numpy().ravel(), drawn)
    assert not whole[:, 3:].any()


def test_bernoulli_with_one_probability_draws_an_element_a_thread():
    found = torch.empty(1000, device="cuda").bernoulli_(0.3).cpu().numpy()
    assert np.array_equal(found, Card(seed=0).uniform(1000) < np.float32(0.3))


def test_bernoulli_with_many_probabilities_draws_four_elements_a_thread():
    card = Card(seed=0)
    chances = torch.linspace(0, 1, 1001, device="cuda")
    found = torch.bernoulli(chances).cpu().numpy()
    words = np.concatenate([card_words(card, thread) for thread in range(251)])[:1001]
    drawn = words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    assert np.array_equal(found, drawn <= chances.cpu().numpy())
    assert offset() == 12


def card_words(card: Card, thread: int) -> np.ndarray:
    words = card.sequence(0, thread)
    return np.array([next(words) for _ in range(4)], np.uint32)


@pytest.mark.parametrize(
    ("numel", "dtype", "vector"),
    [
        (256, torch.float32, 4),
        (65538, torch.float32, 2),
        (65537, torch.float32, 1),
        (ONE_WAVE * 4 + 8, torch.float32, 4),
        (4096, torch.float16, 8),
        (ONE_WAVE * 8 + 8, torch.bfloat16, 8),
        (4096, torch.float64, 2),
    ],
)
def test_dropout_takes_as_many_elements_a_thread_as_16_bytes_hold(numel, dtype, vector):
    card = Card(seed=0)
    x = torch.ones(numel, device="cuda", dtype=dtype)
    kept = torch.from_numpy(card.kept(numel, 1 - 0.1, vector))
    found = F.dropout(x, 0.1)
    assert torch.equal(found.cpu() != 0, kept)
    assert torch.equal(
        found[found != 0].cpu(), torch.full((int(kept.sum()),), 1 / 0.9, dtype=dtype)
    )
    assert offset() == card.offset


def test_dropout_of_a_tensor_that_is_not_dense_follows_its_indices():
    x = torch.ones(6, 8, device="cuda")[:, ::2]
    kept = Card(seed=0).kept(24, 0.5, 1).reshape(6, 4)
    assert np.array_equal(F.dropout(x, 0.5).cpu().numpy() != 0, kept)


@pytest.mark.parametrize("n", [1, 7, 257, 4096, 30001])
def test_randperm_sorts_random_keys(n):
    card = Card(seed=0)
    for _ in range(2):
        assert np.array_equal(torch.randperm(n, device="cuda").cpu().numpy(), card.permutation(n))
        assert offset() == card.offset


def test_multinomial_with_replacement_looks_a_word_up_for_each_sample():
    card = Card(seed=0)
    weights = torch.arange(1.0, 33.0, device="cuda")
    found = torch.multinomial(weights, 64, replacement=True).cpu().numpy()
    drawn = [next(card.sequence(0, thread)) * 2.0**-32 for thread in range(64)]
    sums = np.cumsum(np.arange(1, 33)) / np.arange(1, 33).sum()
    assert np.array_equal(found, np.searchsorted(sums, drawn))
    assert offset() == 4


def test_multinomial_without_replacement_never_takes_a_category_twice():
    found = torch.multinomial(torch.ones(50, 32, device="cuda"), 16).cpu()
    assert all(len(set(row.tolist())) == 16 for row in found)


def test_rrelu_draws_a_slope_for_every_element():
    drawn = Card(seed=0).uniform(257).astype(np.float64) * (1 / 3 - 1 / 8) + 1 / 8
    found = F.rrelu(-torch.ones(257, device="cuda"), training=True).cpu().numpy()
    assert np.array_equal(found, -drawn.astype(np.float32))


SAMPLERS = {
    "exponential": (lambda n: torch.empty(n, device="cuda").exponential_(2.0), 0.5, 0.25),
    "log_normal": (lambda n: torch.empty(n, device="cuda").log_normal_(0, 0.5), 1.1331, 0.3647),
    "geometric": (lambda n: torch.empty(n, device="cuda").geometric_(0.25), 4.0, 12.0),
    "poisson of 3": (lambda n: torch.poisson(torch.full((n,), 3.0, device="cuda")), 3.0, 3.0),
    "poisson of 90": (lambda n: torch.poisson(torch.full((n,), 90.0, device="cuda")), 90.0, 90.0),
    "gamma": (lambda n: torch._standard_gamma(torch.full((n,), 2.0, device="cuda")), 2.0, 2.0),
    "binomial": (
        lambda n: torch.binomial(
            torch.full((n,), 40.0, device="cuda"), torch.full((n,), 0.5, device="cuda")
        ),
        20.0,
        10.0,
    ),
    "dirichlet": (lambda n: torch._sample_dirichlet(torch.ones(n, 2, device="cuda")), 0.5, 1 / 12),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_other_distributions_have_their_mean_and_variance(name):
    sample, mean, variance = SAMPLERS[name]
    found = sample(40000).double()
    assert found.mean().item() == pytest.approx(mean, rel=0.03)
    assert found.var().item() == pytest.approx(variance, rel=0.08)


# ---- generators


def test_a_state_is_the_seed_and_the_offset_and_can_be_restored():
    torch.manual_seed(1234)
    torch.rand(5, device="cuda")
    state = torch.cuda.get_rng_state()
    assert state.tolist() == [*(1234).to_bytes(8, "little"), *(4).to_bytes(8, "little")]
    first = torch.rand(5, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="cuda"), first)


def test_a_forked_state_comes_back():
    before = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.randn(100, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_a_generator_of_ones_own_leaves_the_default_one_alone():
    generator = torch.Generator("cuda").manual_seed(0)
    expected = torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda", generator=generator), expected)
    assert (generator.initial_seed(), generator.get_offset(), offset()) == (0, 4, 4)


def test_a_new_generator_has_pytorchs_default_seed():
    assert torch.Generator("cuda").initial_seed() == 67280421310721


def test_a_clone_of_a_state_goes_its_own_way():
    generator = torch.Generator("cuda").manual_seed(7)
    clone = generator.clone_state()
    assert torch.equal(
        torch.rand(3, device="cuda", generator=generator),
        torch.rand(3, device="cuda", generator=clone),
    )
    torch.rand(3, device="cuda", generator=generator)
    assert (generator.get_offset(), clone.get_offset()) == (8, 4)


def test_an_offset_must_be_a_multiple_of_four():
    generator = torch.Generator("cuda")
    generator.set_offset(8)
    with pytest.raises(RuntimeError, match="offset must be a multiple of 4"):
        generator.set_offset(6)


def test_a_generator_of_the_host_is_refused_in_pytorchs_words():
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found"):
        torch.rand(3, device="cuda", generator=torch.Generator())


def test_a_probability_beyond_one_is_a_device_side_assert():
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        torch.bernoulli(torch.full((3,), 1.5, device="cuda"))


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_weights_that_are_none_are_a_device_side_assert(bad):
    weights = torch.tensor([1.0, bad, 1.0], device="cuda")
    with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
        torch.multinomial(weights, 2, replacement=True)
    with pytest.raises(RuntimeError, match="either `inf`, `nan` or element < 0"):
        torch.multinomial(weights, 2)


def test_each_gpu_has_a_generator_and_manual_seed_seeds_them_all():
    program = """
import torch
from anydevice import virtual
virtual.enable(gpus=2)
torch.manual_seed(3)
first, second = torch.rand(5, device="cuda:0"), torch.rand(5, device="cuda:1")
assert torch.equal(first.cpu(), second.cpu())
torch.rand(5, device="cuda:1")
assert [torch.cuda.default_generators[i].get_offset() for i in (0, 1)] == [4, 8]
assert torch.Generator("cuda:1").device == torch.device("cuda:1")
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def test_a_card_with_fewer_multiprocessors_draws_in_another_order():
    program = """
import torch
from anydevice import virtual
virtual.enable(gpu="t4")
torch.manual_seed(0)
torch.save(torch.rand(100_000, device="cuda").cpu(), "{}")
"""
    with tempfile.NamedTemporaryFile() as file:
        done = python("-c", program.format(file.name))
        assert done.returncode == 0, done.stderr
        found = torch.load(file.name).numpy()
    card = Card(seed=0, multiprocessors=40, threads_per_multiprocessor=1024)
    assert np.array_equal(found, lowered(card, 100_000))


def test_a_seed_repeats_a_training_step():
    def step() -> torch.Tensor:
        torch.manual_seed(5)
        network = nn.Sequential(nn.Linear(8, 64), nn.Dropout(), nn.Linear(64, 2)).cuda()
        loss = network(torch.randn(32, 8, device="cuda")).square().mean()
        loss.backward()
        return copy.deepcopy(network[0].weight.grad)

    assert torch.equal(step(), step())
