"""A step that does not fit is taken in parts, and learns what the whole would have taught."""

import copy

import pytest
import torch
from torch import nn

from anydevice import virtual_gpus
from anydevice.errors import UsageError
from anydevice.train.trial import Trial

WIDTH = 64 * 1024
DATA = (torch.linspace(-1, 1, 400).reshape(100, 4), torch.arange(100) % 3)


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))


def trained(network, memory, parts=1, **options):
    """The history, and the network's state."""
    with virtual_gpus(memory=memory):
        trial = Trial(network, "sgd", "cross_entropy", metrics=["loss", "accuracy"]).to("cuda:0")
        trial.with_options(**options).with_generators(DATA, batch_size=100, shuffle=False)
        trial.job.parts = parts
        history = trial.run(3, verbose=False)
        return history, {name: t.cpu() for name, t in network.state_dict().items()}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gpu_of_64_mib_learns_what_a_large_one_learns(caplog, accumulate):
    expected, weights = trained(wide(), None, accumulate=accumulate)
    assert not caplog.records
    found, small = trained(wide(), "64MiB", accumulate=accumulate)
    assert [r["loss"] for r in found] == pytest.approx([r["loss"] for r in expected], abs=1e-5)
    for name in weights:
        torch.testing.assert_close(small[name], weights[name], rtol=1e-4, atol=1e-6)
    said = [record.message for record in caplog.records]
    assert said[0].startswith("anydevice: cuda:0 is out of memory for a batch of 100; from here on")
    assert len(said) <= 3  # 2, 4, 8 parts: the split is kept, and found once


class Fails(nn.Module):
    """Runs out of memory the first time that it sees a whole batch."""

    failed = False

    def forward(self, x):
        if len(x) == 100 and not self.failed:
            self.failed = True
            torch.rand(1000, device=x.device)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return x


def test_random_numbers_and_running_figures_are_those_of_one_attempt():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), Fails())
    _, expected = trained(copy.deepcopy(network), None, parts=2, seed=5)
    _, found = trained(network, None, seed=5)
    assert network[3].failed
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_one_sample_that_does_not_fit_is_the_error_that_it_is():
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        trained(wide(), "2MiB")


def test_it_can_be_turned_off():
    with pytest.raises(torch.OutOfMemoryError):
        trained(wide(), "64MiB", on_oom="raise")
    with pytest.raises(UsageError, match="expected on_oom of 'split' or 'raise', got 'retry'"):
        Trial(nn.Linear(1, 1)).with_options(on_oom="retry")


def test_the_error_says_what_holds_the_memory_and_what_would_fit():
    data = torch.randn(600, 4), torch.arange(600) % 3
    with virtual_gpus(memory="128MiB"):
        trial = Trial(wide(), "adam", "cross_entropy").to("cuda:0").with_options(on_oom="raise")
        trial.with_generators(data, batch_size=600)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            trial.run(1, verbose=False)
    (note,) = (n for n in caught.value.__notes__ if "This training holds" in n)
    assert "cuda:0 has 128.0 MiB. This training holds weights 2.0 MiB" in note
    assert "A batch of 600 keeps 150.0 MiB more for the backward pass." in note
    fits = int(note.partition("At most about ")[2].split()[0])
    assert 350 < fits < 500
    assert f"batch_size={fits}" in note
    assert "with_options(accumulate=2)" in note


def test_not_even_one_sample_fits():
    with virtual_gpus(memory="12MiB"):
        trial = Trial(wide(), "sgd", "cross_entropy").to("cuda:0")
        network = nn.Sequential(trial.network[0], *[nn.Tanh() for _ in range(60)], trial.network[2])
        trial = Trial(network, "sgd", "cross_entropy").to("cuda:0")
        trial.with_generators(DATA, batch_size=100)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            trial.run(1, verbose=False)
    assert any("Not even one sample fits" in note for note in caught.value.__notes__)
