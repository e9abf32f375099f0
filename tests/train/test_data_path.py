"""Batches: the same samples by the shortest way, and nothing that waits for the device."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from anydevice.train.data import batches as path
from anydevice.train.data.batches import batches_of
from anydevice.train.data.sets import Sets
from anydevice.train.trial import Trial
from anydevice.virtual import events

CPU = torch.device("cpu")


def in_order(samples):
    return lambda device: None


def test_a_loader_over_tensors_gives_the_loaders_own_batches(data):
    loader = DataLoader(TensorDataset(*data), batch_size=32, shuffle=True, drop_last=True)
    torch.manual_seed(5)
    expected = list(loader)
    torch.manual_seed(5)
    found = list(batches_of(loader, CPU, batch_size=1, order=in_order))
    assert len(found) == len(expected) == 4
    for batch, wanted in zip(found, expected, strict=True):
        assert all(map(torch.equal, batch, wanted))


def test_a_loader_over_tensors_is_not_asked_for_single_samples(data, monkeypatch):
    monkeypatch.setattr(TensorDataset, "__getitem__", None)
    loader = DataLoader(TensorDataset(*data), batch_size=50)
    assert sum(len(y) for _, y in batches_of(loader, CPU, batch_size=1, order=in_order)) == 130


def test_a_loader_with_a_collate_function_of_its_own_is_used_as_it_is(data):
    loader = DataLoader(TensorDataset(*data), batch_size=65, collate_fn=lambda rows: len(rows))
    assert list(batches_of(loader, CPU, batch_size=1, order=in_order)) == [65, 65]


class Points(Dataset):
    """A map-style Dataset that a user wrote."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])


def test_a_dataset_is_batched_and_shuffled(data, device):
    def reversed_order(samples):
        return lambda device: torch.arange(samples - 1, -1, -1, device=device)

    batches = list(batches_of(Points(*data), device, batch_size=100, order=reversed_order))
    assert [len(y) for _, y in batches] == [100, 30]
    assert torch.equal(batches[0][0].cpu(), data[0].flip(0)[:100])
    assert batches[0][0].device == device


@pytest.mark.parametrize("share", [0.5, 0])
def test_data_that_fits_stays_on_the_device_and_the_rest_streams(
    data, virtual_gpu, monkeypatch, share
):
    monkeypatch.setattr(path, "RESIDENT_SHARE", share)
    heard = []
    batches = batches_of(data, torch.device("cuda:0"), batch_size=50, order=in_order)
    with events.listening(heard.append):
        found = [x for x, _ in batches]
    assert torch.equal(torch.cat(found).cpu(), data[0])
    sent = [event for event in heard if event.kind == "transfer" and event.source == -1]
    assert len(sent) == (6 if share == 0 else 0)
    assert all(event.pinned and not event.blocking for event in sent)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("share", [0.5, 0])
def test_nothing_waits_between_two_log_points(
    network, data, virtual_gpu, monkeypatch, precision, share
):
    monkeypatch.setattr(path, "RESIDENT_SHARE", share)
    trial = Trial(network, "adam", "cross_entropy", metrics=["loss", "accuracy"])
    trial.to("cuda:0", precision).with_options(clip_norm=1.0, accumulate=2)
    trial.with_generators(data, batch_size=10)
    trial.run(1, verbose=False)
    heard = []
    with events.listening(heard.append):
        trial.run(3, verbose=False)
    waits = [(event.op, event.where) for event in heard if event.kind == "synchronise"]
    assert len(waits) == 2, waits  # one for each epoch's record


def test_each_epoch_has_an_order_of_its_own_and_the_seed_decides_it(network, data, device):
    def orders(seed):
        seen = []

        def step(network, batch):
            seen.append(batch[0].cpu())
            return network(batch[0]).sum() * 0

        trial = Trial(network, "adam", step=step).to(device).with_options(seed=seed)
        trial.with_generators(data, batch_size=130).run(2, verbose=False)
        return seen

    first, second = orders(1)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort(0).values, data[0].sort(0).values)
    assert torch.equal(orders(1)[1], second)
    assert not torch.equal(orders(2)[0], first)


def test_images_stay_bytes_and_come_out_standardised(device):
    images = torch.randint(0, 200, (60, 3, 8, 8), dtype=torch.uint8)
    labels = torch.zeros(60, dtype=torch.int64)
    seen = []

    class Look(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(192, 2))

        def forward(self, x):
            seen.append(x.detach().cpu())
            return x.flatten(1) @ self.weight

    trial = Trial(Look(), "sgd", "cross_entropy").to(device)
    trial.with_generators((images, labels), batch_size=60, shuffle=False).run(1, verbose=False)
    assert trial.sets.named("train").batches.tensors[0].dtype == torch.uint8
    whole = images.float()
    wanted = (whole - whole.mean((0, 2, 3), keepdim=True)) / whole.std(
        (0, 2, 3), unbiased=False, keepdim=True
    )
    torch.testing.assert_close(seen[0], wanted, rtol=1e-4, atol=1e-5)
    trial.predict(images[:1])  # by the statistics of the training images, not of this one
    torch.testing.assert_close(seen[1], wanted[:1], rtol=1e-4, atol=1e-5)


def as_loader(images):
    return DataLoader(images, batch_size=20)


def as_part(images):
    return Subset(images, range(60))


@pytest.mark.parametrize("given", [as_loader, as_part, lambda images: as_loader(as_part(images))])
def test_images_of_bytes_are_standardised_however_they_come(given, device):
    pixels = torch.randint(256, (80, 1, 4, 4), dtype=torch.uint8)
    images = TensorDataset(pixels, torch.arange(80))
    sets = Sets(device)
    sets.give("train", given(images), 20, shuffle=False)
    found = torch.cat([batch[0] for batch in sets.named("train")]).cpu()
    known = pixels[: len(found)].float()
    assert torch.allclose(found, (known - known.mean()) / known.std(correction=0), atol=1e-4)


def test_a_dataset_that_does_something_to_its_tensors_is_asked_for_them(device):
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * tensor for tensor in super().__getitem__(index))

    data = Doubled(torch.arange(6.0), torch.arange(6))
    for given in (data, DataLoader(data, batch_size=4)):
        sets = Sets(device)
        sets.give("train", given, 4, shuffle=False)
        assert torch.cat([x for x, _ in sets.named("train")]).tolist() == [0, 2, 4, 6, 8, 10]
