"""What an op does on a GPU: its matrix products, the bytes that it moves, its kernels.

FLOPs are PyTorch's own (torch.utils.flop_counter) where it has a formula; the shapes
say how well a product fills the card. Ops that are not named here read their inputs and write their
outputs once, in one kernel, as most ops do.
"""

import logging
from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor

from anydevice.plan.time.overloads import Overload
from anydevice.plan.time.work import Product

logging.getLogger("torch.utils.flop_counter").setLevel(
    logging.ERROR
)  # it warns that Triton is missing
from torch.utils import flop_counter  # noqa: E402

Arguments = tuple[Any, ...]

# Ops that write without reading what was there.
FILLS = frozenset(
    (
        "fill_",
        "zero_",
        "copy_",
        "normal_",
        "uniform_",
        "random_",
        "exponential_",
        "bernoulli_",
        "log_normal_",
        "cauchy_",
        "geometric_",
        "_foreach_zero_",
        "_foreach_copy_",
    )
)

# Ops that pick rows or cells: they read as much as they write, not the whole input.
PICKS = frozenset(
    (
        "embedding",
        "index",
        "index_select",
        "gather",
        "take",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "select_backward",
        "slice_backward",
    )
)

# How often an op reads its inputs, if more than once.
READS = {
    "cudnn_batch_norm": 2,
    "cudnn_batch_norm_backward": 2,
    "native_batch_norm": 2,
    "native_batch_norm_backward": 2,
    "_log_softmax": 2,
    "_log_softmax_backward_data": 2,
    "_softmax": 2,
    "_softmax_backward_data": 2,
    "native_layer_norm_backward": 2,
    "native_group_norm": 2,
    "native_group_norm_backward": 2,
    "std": 2,
    "var": 2,
    "var_mean": 2,
}

# Kernels of one op, as its CUDA source launches them (ATen/native/cuda, cuDNN).
KERNELS = {
    "native_batch_norm": 2,
    "native_batch_norm_backward": 2,
    "cudnn_batch_norm": 1,
    "cudnn_batch_norm_backward": 1,
    "native_layer_norm_backward": 3,
    "native_group_norm": 3,
    "native_group_norm_backward": 4,
    "embedding_dense_backward": 8,
    "index_put_": 6,
    "_index_put_impl_": 6,
    "nonzero": 4,
    "sort": 6,
    "topk": 3,
    "cumsum": 2,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2,
    "_scaled_dot_product_cudnn_attention_backward": 2,
    "_ctc_loss": 2,
    "_ctc_loss_backward": 3,
    "randperm": 4,
}

# ATen/native/cuda/MultiTensorApply.cuh: elements in a chunk; most chunks and tensors a launch.
CHUNK, CHUNKS = 65536, 320
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}


def size(tensor: Tensor) -> int:
    """The bytes of memory behind a tensor: an expanded one has less than its elements."""
    if tensor.is_contiguous():
        return tensor.nbytes
    counts = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return prod(counts) * tensor.element_size() if tensor.numel() else 0


def traffic(name: str, inputs: list[Tensor], outputs: list[Tensor], written: list[Tensor]) -> float:
    """The bytes read and written."""
    out = sum(map(size, outputs)) or sum(map(size, written))
    if name in PICKS:
        return 2.0 * out
    changed = {id(tensor) for tensor in written}
    read = sum(size(t) for t in inputs if name not in FILLS or id(t) not in changed)
    if outputs and written and not {id(t) for t in outputs} <= changed:
        out += sum(map(size, written))
    return float(READS.get(name, 1) * read + out)


def kernels(name: str, products: tuple[Product, ...], lists: list[list[Tensor]]) -> int:
    """How many kernels are launched."""
    if lists and name.startswith(("_foreach", "_fused", "_amp_foreach")):
        longest = lists[0]
        chunks = sum(-(-tensor.numel() // CHUNK) for tensor in longest)
        most = TENSORS.get(len(lists), 30)
        return max(1, -(-len(longest) // most), -(-chunks // CHUNKS))
    return max(KERNELS.get(name, 1), len(products))


def products(
    op: Overload, args: Arguments, kwargs: dict[str, Any], result: Any
) -> tuple[Product, ...]:
    """The matrix products in an op, with their shapes; none if it only moves bytes."""
    shaped = SHAPES.get(op.name)
    if shaped:
        return tuple(shaped(args, kwargs, result))
    formula = _formula(op.packet)
    if formula is None:
        return ()
    flops = formula(*args, **kwargs, out_val=result)
    side = max(1, round((flops / 2) ** (1 / 3)))  # the shape is unknown: a cube with as many FLOPs
    return (Product(1, side, side, side, "matmul"),)


_formulas: dict[int, Any] = {}  # by id, since a packet's hash takes longer than a call of it


def _formula(packet: Any) -> Any:
    """PyTorch's formula for the FLOPs."""
    if id(packet) not in _formulas:
        _formulas[id(packet)] = flop_counter.flop_registry.get(packet)
    return _formulas[id(packet)]


def _mm(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    a, b = args[-2:] if len(args) == 2 else args[1:3]
    yield Product(1, a.shape[0], b.shape[1], a.shape[1])


def _bmm(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    a, b = args[-2:] if len(args) == 2 else args[1:3]
    yield Product(a.shape[0], a.shape[1], b.shape[2], a.shape[2])


def _scaled_mm(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    yield Product(1, args[0].shape[0], args[1].shape[1], args[0].shape[1])


def _convolution(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    pixels = x if transposed else result
    yield _as_product(pixels, weight, groups, _kind(weight, stride, dilation, groups))


def _convolution_backward(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    grad, x, weight, _, stride, _, dilation, transposed, _, groups, mask = args[:11]
    kind = _kind(weight, stride, dilation, groups)
    forward = _as_product(x if transposed else grad, weight, groups, kind)
    b, m, n, k = forward.batch, forward.m, forward.n, forward.k
    if mask[0]:  # with respect to the input: every pixel of the output is spread
        filters = prod(weight.shape[2:])
        yield Product(b, m, k // filters, n * filters, kind)
    if mask[1]:  # with respect to the weights: the pixels are summed over
        yield Product(b, n, k, m, kind)


def _as_product(pixels: Tensor, weight: Tensor, groups: int, kind: str) -> Product:
    """A convolution as the product that implicit GEMM makes of it."""
    m = pixels.shape[0] * prod(pixels.shape[2:])
    return Product(groups, m, weight.shape[0] // groups, prod(weight.shape[1:]), kind)


def _kind(weight: Tensor, stride: list[int], dilation: list[int], groups: int) -> str:
    """Whether Winograd's algorithm, which multiplies less, can be used."""
    plain = groups == 1 and {*stride, *dilation} == {1} and weight.shape[1] >= 16
    return "winograd" if plain and weight.shape[2:] == (3, 3) else "convolution"


def _attention(args: Arguments, kwargs: Any, result: Any, times: float = 2.0) -> Iterable[Product]:
    query, key = args[0], args[1]
    causal = any(flag is True for flag in args[3:]) or kwargs.get("is_causal") is True
    b, heads, length, width = query.shape
    share = 0.5 if causal and length == key.shape[2] else 1.0
    yield Product(b * heads, length, key.shape[2], width, "attention", times * share)


def _attention_backward(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    yield from _attention(args[1:], kwargs, result, 5.0)


def _recurrence(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    """cuDNN's recurrent layers: each weight is used once per time step."""
    x, weights = args[0], args[1]
    yield from _recurrent(x, weights, 1)


def _recurrence_backward(args: Arguments, kwargs: Any, result: Any) -> Iterable[Product]:
    yield from _recurrent(args[0], args[1], 2)


def _recurrent(x: Tensor, weights: list[Tensor], passes: int) -> Iterable[Product]:
    steps = x.shape[0] * x.shape[1] if x.dim() == 3 else x.shape[0]
    for weight in weights:
        if weight.dim() == 2:
            for _ in range(passes):
                yield Product(1, steps, weight.shape[0], weight.shape[1], "recurrence")


Shaped = Callable[[Arguments, Any, Any], Iterable[Product]]
SHAPES: dict[str, Shaped] = {
    "mm": _mm,
    "addmm": _mm,
    "addmm_": _mm,
    "_addmm_activation": _mm,
    "bmm": _bmm,
    "baddbmm": _bmm,
    "_scaled_mm": _scaled_mm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_cudnn_rnn": _recurrence,
    "_cudnn_rnn_backward": _recurrence_backward,
    **{
        f"_scaled_dot_product_{kind}_attention": _attention
        for kind in ("flash", "efficient", "cudnn")
    },
    **{
        f"_scaled_dot_product_{kind}_attention_backward": _attention_backward
        for kind in ("flash", "efficient", "cudnn")
    },
}


def unit_of(products: tuple[Product, ...], inputs: list[Tensor]) -> str:
    """The arithmetic of the products: the inputs' dtype, or TF32 where float32 allows it."""
    dtype = inputs[-1].dtype if inputs else torch.float32
    for tensor in inputs:
        if tensor.dtype.is_floating_point:
            dtype = tensor.dtype
            break
    name = str(dtype).removeprefix("torch.")
    if name == "float32" and products:
        kind = {"convolution": "conv", "winograd": "conv", "recurrence": "rnn"}.get(
            products[0].kind, "matmul"
        )
        allowed = torch._C._get_fp32_precision_getter("cuda", kind)
        return "tf32" if allowed == "tf32" else name
    return "float8" if name.startswith("float8") else name


def layout_bytes(
    products: tuple[Product, ...], inputs: list[Tensor], outputs: list[Tensor]
) -> float:
    """The bytes that cuDNN moves to put channels last, and first again."""
    if not products or products[0].kind not in ("convolution", "winograd"):
        return 0.0
    images = inputs[0]
    if images.dim() != 4 or images.is_contiguous(memory_format=torch.channels_last):
        return 0.0
    return 2.0 * sum(map(size, (*inputs, *outputs)))


def is_aligned(products: tuple[Product, ...], item_size: int) -> bool:
    """Whether tensor cores can load the operands 16 bytes at a time."""
    every = max(1, 16 // item_size)
    return all(p.kind != "matmul" or (p.n % every == 0 and p.k % every == 0) for p in products)
