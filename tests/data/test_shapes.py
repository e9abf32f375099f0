import hashlib

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import anydevice as ad


@pytest.fixture(scope="module")
def drawn() -> tuple[ad.data.Images, ad.data.Images]:
    return ad.data.shapes(train=2000, test=500)


def test_the_bytes_are_the_same_everywhere() -> None:
    train, test = ad.data.shapes(train=100, test=100)
    digest = hashlib.sha256(train.images.numpy().tobytes()).hexdigest()
    assert digest == "e9b9718b05c256507370c316d0c48d2f0ac63d6a59fe82cc472f169e82922678"
    assert not torch.equal(train.images, test.images)
    assert not torch.equal(train.images, ad.data.shapes(100, 100, seed=1)[0].images)


def test_a_smaller_set_is_the_beginning_of_a_larger_one(drawn) -> None:
    for small, large in zip(ad.data.shapes(train=300, test=7), drawn, strict=True):
        assert torch.equal(small.images, large.images[: len(small)])
        assert torch.equal(small.labels, large.labels[: len(small)])


def test_it_is_a_dataset_of_tensors_as_trained_on(drawn) -> None:
    train, test = drawn
    assert isinstance(train, TensorDataset)
    assert (len(train), len(test)) == (2000, 500)
    assert (train.images.shape, train.images.dtype) == ((2000, 1, 28, 28), torch.uint8)
    assert (train.labels.shape, train.labels.dtype) == ((2000,), torch.int64)
    images, labels = next(iter(DataLoader(test, batch_size=8)))
    assert torch.equal(images, test.images[:8])
    assert torch.equal(labels, test.labels[:8])


def test_every_class_comes_equally_often_and_has_a_name(drawn) -> None:
    for images in drawn:
        assert images.labels.bincount().tolist() == [len(images) // 10] * 10
        assert len(set(images.classes)) == 10


def test_both_sets_are_normalized_by_the_training_pixels(drawn) -> None:
    train, test = drawn
    normal = train.normalize(train.images)
    assert normal.dtype == torch.float32
    assert abs(normal.mean()) < 1e-3
    assert abs(normal.std() - 1) < 1e-3
    assert (test.mean, test.std) == (train.mean, train.std)


def test_the_mean_image_of_a_class_does_not_tell_the_class(drawn) -> None:
    train, test = (images.normalize(images.images).flatten(1) for images in drawn)
    labels = drawn[0].labels
    means = torch.stack([train[labels == label].mean(0) for label in range(10)])
    right = torch.cdist(test, means).argmin(1) == drawn[1].labels
    assert right.float().mean() < 0.35


@pytest.mark.parametrize("wrong", [{"train": 0}, {"test": 2.5}, {"seed": -1}, {"train": True}])
def test_what_cannot_be_drawn_is_refused_in_a_sentence(wrong: dict[str, int]) -> None:
    with pytest.raises(ad.UsageError, match=f"expected {next(iter(wrong))} to be an integer"):
        ad.data.shapes(**wrong)
