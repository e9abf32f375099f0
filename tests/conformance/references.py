"""Ops that CUDA alone has: the same computed on the CPU from what it has."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.testing._internal.opinfo.core import SampleInput


def flash_attention(sample: SampleInput) -> torch.Tensor | None:
    how = sample.kwargs
    if how["dropout_p"]:
        return None
    return attention(sample, lower_right(sample) if how["is_causal"] else None)


def efficient_attention(sample: SampleInput) -> torch.Tensor | None:
    how = sample.kwargs
    if how["dropout_p"] or how["cu_seqlens_k"] is not None or how["bias"] is not None:
        return None
    masks = {0: None, 1: upper_left(sample), 2: lower_right(sample)}
    return attention(sample, masks[how["custom_mask_type"]])


def attention(sample: SampleInput, mask: torch.Tensor | None) -> torch.Tensor:
    """Exactly, in float64, of (batch, length, heads, width)."""
    q, k, v = (t.detach().double().transpose(1, 2) for t in (sample.input, *sample.args))
    exact = F.scaled_dot_product_attention(q, k, v, mask, scale=sample.kwargs["scale"])
    return exact.transpose(1, 2).to(sample.input.dtype)


def upper_left(sample: SampleInput) -> torch.Tensor:
    return torch.ones(sample.input.shape[1], sample.args[0].shape[1], dtype=torch.bool).tril()


def lower_right(sample: SampleInput) -> torch.Tensor:
    queries, keys = sample.input.shape[1], sample.args[0].shape[1]
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


REFERENCES: dict[str, Callable[[SampleInput], torch.Tensor | None]] = {
    "torch.ops.aten._flash_attention_forward": flash_attention,
    "torch.ops.aten._efficient_attention_forward": efficient_attention,
}
