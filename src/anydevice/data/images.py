"""A set of images: a TensorDataset with the names of its classes and statistics of its pixels."""

from collections.abc import Sequence

import torch
from torch.utils.data import TensorDataset

CHUNK = 10_000  # images turned into float64 at a time


class Images(TensorDataset):
    """A `TensorDataset` of images [N, C, H, W] and int64 labels [N].

    Attributes:
        images: All images, mostly uint8.
        labels: All labels.
        classes: The name of each class: `train.classes[label]`.
        mean: The mean of the training pixels, scaled to 0 to 1, for each channel.
        std: Their standard deviation.

    Example:
        >>> import anydevice as ad
        >>> train, test = ad.data.shapes(100, 20)
        >>> train.normalize(train.images[:8]).shape
        torch.Size([8, 1, 28, 28])
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        classes: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(images, labels)
        self.classes = tuple(classes)
        self.mean, self.std = tuple(mean), tuple(std)

    @property
    def images(self) -> torch.Tensor:
        """All images, mostly uint8."""
        return self.tensors[0]

    @property
    def labels(self) -> torch.Tensor:
        """All labels: `train.classes[train.labels[0]]` is the first image's class."""
        return self.tensors[1]

    def normalize(self, images: torch.Tensor) -> torch.Tensor:
        """Images as float32 with mean 0 and deviation 1: `train.normalize(batch)`."""
        mean, std = (
            torch.tensor(figures, device=images.device).view(-1, 1, 1)
            for figures in (self.mean, self.std)
        )
        return (images.to(torch.float32) / _scale(images) - mean) / std

    def to(self, device: torch.device | str) -> "Images":
        """The same set with its tensors on a device: `train.to(ad.try_gpu())`."""
        images, labels = (tensor.to(device) for tensor in self.tensors)
        return Images(images, labels, self.classes, self.mean, self.std)

    def __repr__(self) -> str:
        shape = " × ".join(map(str, self.images.shape))
        kind = str(self.images.dtype).removeprefix("torch.")
        return f"Images({shape}, {kind}, {len(self.classes)} classes, on {self.images.device})"


def pixel_statistics(images: torch.Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel: `pixel_statistics(train.images)`."""
    axes, total, squares = (0, 2, 3), torch.zeros(()).double(), torch.zeros(()).double()
    for chunk in torch.split(images, CHUNK):
        pixels = chunk.double() / _scale(chunk)
        total, squares = total + pixels.sum(axes), squares + (pixels * pixels).sum(axes)
    count = images.numel() // images.shape[1]
    mean = total / count
    std = (squares / count - mean * mean).clamp(min=0).sqrt()
    return mean.tolist(), torch.where(std > 0, std, 1.0).tolist()  # constant: nothing to divide by


def _scale(images: torch.Tensor) -> int:
    return 255 if images.dtype == torch.uint8 else 1
