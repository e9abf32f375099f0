"""Convolutions and samplers that have CUDA kernels of their own, against the CPU's."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.virtual.against_cpu import numbers, same

pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"groups": 4}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 4}]
)
def test_convolutions_depthwise_and_not(dimensions, options):
    layer = getattr(nn, f"Conv{dimensions}d")(4, 8, 3, **options)
    same(lambda layer, x: layer(x), layer, numbers(2, 4, *[6] * dimensions))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_depthwise_convolutions_of_every_type(dtype):
    layer = nn.Conv2d(4, 8, 3, groups=4, dtype=dtype)
    same(lambda layer, x: layer(x), layer, numbers(2, 4, 6, 6, dtype=dtype), within=1e-2)


def test_gradients_of_gradients_of_a_depthwise_convolution():
    def program(layer, x):
        (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return gradient

    same(program, nn.Conv2d(4, 4, 3, groups=4), numbers(2, 4, 6, 6), within=1e-5)


ONES, ZEROS = [1, 1], [0, 0]


def test_cudnns_convolution():
    def program(x, weight):
        if not x.is_cuda:
            return F.conv2d(x, weight, groups=4)
        return torch.cudnn_convolution(x, weight, ZEROS, ONES, ONES, 4, False, False, True)

    same(program, numbers(2, 4, 6, 6), numbers(4, 1, 3, 3), within=1e-6)


def test_the_depthwise_convolutions_by_name():
    def program(x, weight):
        dimensions = weight.dim() - 2
        one, zero = [1] * dimensions, [0] * dimensions
        if not x.is_cuda:
            return (F.conv2d if dimensions == 2 else F.conv3d)(x, weight, groups=4)
        op = (
            torch.ops.aten._conv_depthwise2d if dimensions == 2 else torch.ops.aten.conv_depthwise3d
        )
        return op(x, weight, [3] * dimensions, None, one, zero, one)

    same(program, torch.randn(2, 4, 6, 6), torch.randn(4, 1, 3, 3))
    same(program, torch.randn(2, 4, 6, 6, 6), torch.randn(4, 1, 3, 3, 3))


def test_convolutions_with_something_fused_behind():
    x, weight, bias, z = (torch.randn(s) for s in [(2, 4, 6, 6), (5, 4, 3, 3), (5,), (2, 5, 4, 4)])

    def program(x, weight, bias, z):
        if not x.is_cuda:
            result = F.conv2d(x, weight, bias)
            return result.relu(), (result + 2 * z).relu()
        rest = bias, ONES, ZEROS, ONES, 1
        return (
            torch.cudnn_convolution_relu(x, weight, *rest),
            torch.cudnn_convolution_add_relu(x, weight, z, 2, *rest),
        )

    same(program, x, weight, bias, z)


def test_transposed_convolution_by_cudnns_name():
    def program(x, weight):
        if not x.is_cuda:
            return F.conv_transpose2d(x, weight, stride=2)
        flags = False, False, True
        return torch.cudnn_convolution_transpose(x, weight, ZEROS, ZEROS, [2, 2], ONES, 1, *flags)

    same(program, numbers(2, 4, 5, 5), numbers(4, 3, 3, 3), within=1e-5)


@pytest.mark.parametrize("align", [True, False])
def test_grids(align):
    same(
        lambda x, grid: F.grid_sample(x, grid, align_corners=align),
        numbers(2, 3, 5, 5),
        numbers(2, 4, 4, 2),
    )
    same(lambda theta: F.affine_grid(theta, [2, 3, 4, 4], align_corners=align), numbers(2, 2, 3))
