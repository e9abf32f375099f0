"""A trial that does not fit: each remedy is run, and what it says of itself is what it does."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

import anydevice as ad
from anydevice.errors import UsageError
from anydevice.plan.hollow.isolated import isolated
from anydevice.plan.remedies import changes
from anydevice.plan.remedies.search import Remedies, Remedy, try_remedies
from anydevice.tables import plain_text

WIDTH = 4096
GIB = 1 << 30


class Block(nn.Module):
    """Keeps more for backward than it has weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


def trial(batch: int, width: int = 64) -> ad.Trial:
    blocks = (Block(width) for _ in range(4))
    network = nn.Sequential(nn.Linear(8, width), *blocks, nn.Linear(width, 10))
    x, y = torch.zeros(4 * batch, 8), torch.zeros(4 * batch, dtype=torch.long)
    made = ad.Trial(network, "adam", "cross_entropy")
    return made.with_generators((x, y), batch_size=batch)


@pytest.fixture(scope="module")
def tried() -> dict[str, Remedy]:
    """On a T4, for which it is too large; without values, which would take longer to draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "reset_parameters", lambda layer: None)
        mine = trial(50_000, WIDTH)
    plan = ad.plan(mine, "t4")
    remedies = plan["t4"].remedies
    assert remedies
    assert not plan.fits
    return {remedy.name: remedy for remedy in (remedies.as_it_is, *remedies.tried)}


def bytes_of(remedy: Remedy) -> int:
    assert remedy.device_bytes, remedy.why_not
    return remedy.device_bytes


def test_every_remedy_was_run(tried: dict[str, Remedy]) -> None:
    assert [remedy.why_not for remedy in tried.values()] == [""] * len(tried)
    names = " ".join(tried)
    for name in ("accumulation", "fp16", "checkpointing", "fused", "foreach", "FSDP2", "layers"):
        assert name in names


def test_checkpointing_keeps_less_and_computes_again(tried: dict[str, Remedy]) -> None:
    before = tried["as it is"]
    every = tried["checkpointing, every second of the 4 blocks in the network"]
    assert bytes_of(every) < 0.9 * bytes_of(before)
    assert before.time
    assert every.time
    assert 1.05 < every.time.seconds / before.time.seconds < 1.4


def test_parts_of_a_batch_take_less_at_about_the_same_speed(tried: dict[str, Remedy]) -> None:
    before, halves = tried["as it is"], tried["gradient accumulation, 2 parts"]
    assert bytes_of(halves) < 0.85 * bytes_of(before)
    assert before.time
    assert halves.time
    assert halves.time.seconds == pytest.approx(before.time.seconds, rel=0.15)


def test_half_precision_is_quicker(tried: dict[str, Remedy]) -> None:
    assert tried["fp16"].card_seconds < 0.6 * tried["as it is"].card_seconds


def test_two_cards_share_the_weights_or_the_layers(tried: dict[str, Remedy]) -> None:
    before, shards = tried["as it is"], tried["FSDP2 over 2 GPUs"]
    layers = tried["layers over 2 GPUs"]
    assert bytes_of(shards) < 0.7 * bytes_of(before)
    assert bytes_of(layers) < 0.75 * bytes_of(before)
    assert before.time
    assert shards.time
    assert layers.time
    assert shards.time.seconds < 0.7 * before.time.seconds  # half the batch on each
    assert layers.time.seconds > 0.95 * before.time.seconds  # one card waits for the other


def test_the_table_begins_with_the_cheapest_that_fits(tried: dict[str, Remedy]) -> None:
    as_it_is, *rest = tried.values()
    fitting = [remedy for remedy in rest if remedy.fits]
    assert fitting
    assert rest[: len(fitting)] == fitting
    assert [r.card_seconds for r in fitting] == sorted(r.card_seconds for r in fitting)
    remedies = Remedies("t4", as_it_is, rest)
    assert remedies.best == fitting[0]
    assert json.loads(json.dumps(remedies.to_dict()))["as_it_is"]["fits"] is False
    shown = plain_text(remedies, width=200)
    assert "8-bit" in shown
    assert all(remedy.name in shown for remedy in rest)


@pytest.mark.long
def test_where_one_is_not_enough_several_are_tried_together() -> None:
    found = try_remedies(trial(300_000, WIDTH), "t4", cards=1)
    alone = [remedy for remedy in found.tried if "checkpointing and" not in remedy.name]
    assert not any(remedy.fits for remedy in alone)
    assert found.best
    assert found.best.name.startswith("fp16, checkpointing and")


def test_the_trial_itself_stays_as_it_was() -> None:
    mine = trial(16)
    before = {name: weight.clone() for name, weight in mine.network.named_parameters()}
    plan = ad.plan(mine, "h100", steps=2)
    assert plan.fits
    assert plan["h100"].remedies is None
    with pytest.raises(UsageError, match="planned for, h100, got 't4'"):
        plan["t4"]
    assert mine.epoch == 0
    after = dict(mine.network.named_parameters())
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_a_trial_with_an_optimizer_of_its_own_is_copied_with_it() -> None:
    mine = trial(16)
    optimizer = torch.optim.SGD(mine.network.parameters(), 0.1, momentum=0.9)
    mine = ad.Trial(mine.network, optimizer, "cross_entropy").with_generators(mine.train_data)

    def look() -> None:
        with ad.virtual_gpus(gpu="h100", hollow=True):
            other = mine.copied(changes.HERE)
            groups = other.optimizer.param_groups
            assert isinstance(other.optimizer, torch.optim.SGD)
            assert other.optimizer.defaults == optimizer.defaults
            own = {id(weight) for weight in other.network.parameters()}
            assert {id(weight) for group in groups for weight in group["params"]} == own
            assert all(weight.is_cuda for weight in other.network.parameters())

    isolated(look)
    assert not next(mine.network.parameters()).is_cuda


def test_no_segment_of_a_checkpointed_row_changes_its_own_input() -> None:
    layers = [layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.ReLU(inplace=True))]
    row = nn.Sequential(*layers)
    x = torch.rand(4, 8)
    expected = torch.autograd.grad(row(x).sum(), row[0].weight)[0]
    changes.checkpoint_blocks(row)
    assert torch.equal(torch.autograd.grad(row(x).sum(), row[0].weight)[0], expected)


def test_layers_are_spread_by_the_memory_that_they_hold() -> None:
    row = nn.Sequential(*(nn.Linear(10, 10) for _ in range(4)))
    assert changes.placement_of(row, 2, {}) == {
        "*": "cuda:0", "0": "cuda:0", "1": "cuda:0", "2": "cuda:1", "3": "cuda:1",
    }  # fmt: skip
    assert changes.placement_of(row, 2, {"0": GIB})["1"] == "cuda:1"


def test_a_trial_without_data_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a trial with data to train on, got none"):
        ad.plan(ad.Trial(nn.Linear(2, 2), "sgd", "mse"), "t4")
