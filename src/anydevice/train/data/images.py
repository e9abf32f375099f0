"""Images kept as bytes, and turned into numbers that train well only where they are used."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor

from anydevice.data.images import pixel_statistics


class Standardised:
    """Batches whose byte images come out with mean 0 and deviation 1, as the training data has."""

    def __init__(self, batches: Iterable[Any], mean: Tensor, scale: Tensor) -> None:
        self.batches = batches
        self.mean = mean
        self.scale = scale

    def __len__(self) -> int:
        return len(cast(Sized, self.batches))

    def __iter__(self) -> Iterator[Any]:
        for images, *rest in self.batches:
            yield (standardised(images, self.mean, self.scale), *rest)


def standardised(images: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """`(images - mean) * scale`, in float32 from here on."""
    return images.to(torch.float32).sub_(mean).mul_(scale)


def are_bytes(tensor: Tensor) -> bool:
    """Whether this looks like images of bytes: (N, H, W) or (N, C, H, W) in uint8."""
    return tensor.dtype == torch.uint8 and tensor.dim() in (3, 4)


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1/deviation of each channel, of pixels counted from 0 to 255."""
    channelled = images.dim() == 4
    means, deviations = pixel_statistics(images if channelled else images.unsqueeze(1))
    shape = (-1, 1, 1) if channelled else ()
    mean, deviation = (255 * torch.tensor(f).reshape(shape) for f in (means, deviations))
    return mean, deviation.reciprocal()
