"""Images kept as bytes, and turned into numbers that train well only where they are used."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor


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
    """Mean and 1/deviation of each channel, exactly, from how often each byte occurs."""
    channels = images.unbind(1) if images.dim() == 4 else (images,)
    levels = torch.arange(256, dtype=torch.float32, device=images.device)
    means, scales = [], []
    for channel in channels:
        share = torch.bincount(channel.reshape(-1), minlength=256).to(torch.float32)
        share /= channel.numel()
        mean = (share * levels).sum()
        means.append(mean)
        scales.append((share * (levels - mean).square()).sum().sqrt().clamp_min(1e-6).reciprocal())
    shape = (-1, 1, 1) if images.dim() == 4 else ()
    return torch.stack(means).reshape(shape), torch.stack(scales).reshape(shape)
