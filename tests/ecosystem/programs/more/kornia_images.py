"""kornia: filters, colours, geometry and augmentation: python kornia_images.py cuda."""

import json
import sys

import kornia
import torch

device = sys.argv[1]
torch.manual_seed(0)
images = torch.rand(2, 3, 16, 16).to(device).requires_grad_()
angles = torch.tensor([30.0, 45.0]).to(device)
shown = [
    kornia.filters.gaussian_blur2d(images, (3, 3), (1.0, 1.0)),
    kornia.filters.sobel(images),
    kornia.filters.median_blur(images, (3, 3)),
    kornia.color.rgb_to_hsv(images),
    kornia.color.rgb_to_lab(images),
    kornia.geometry.rotate(images, angles),
    kornia.geometry.resize(images, (8, 8)),
    kornia.morphology.dilation(images, torch.ones(3, 3).to(device)),
    kornia.losses.ssim_loss(images, images.detach().flip(0), 5),
    kornia.enhance.equalize_clahe(images),
]
numbers = [image.sum().item() for image in shown]
sum(image.sum() for image in shown).backward()
numbers.append(images.grad.abs().sum().item())
change = kornia.augmentation.AugmentationSequential(
    kornia.augmentation.RandomHorizontalFlip(p=1.0),
    kornia.augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0),
    kornia.augmentation.RandomAffine(10.0, p=1.0),
)
assert change(images).device == images.device
print(json.dumps({"numbers": numbers, "device": images.grad.device.type}))
