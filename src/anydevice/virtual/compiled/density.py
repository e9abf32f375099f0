"""The work of flex_attention's kernels: by the share of the scores that their mask leaves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from anydevice.virtual.compiled.launches import Product

SAMPLES = 64  # positions of queries and of keys at which a mask is evaluated

_shares: dict[int, float] = {}  # by the storage of a mask's number of blocks
_alive: WeakValueDictionary[int, Any] = WeakValueDictionary()


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """create_block_mask, which on a hollow GPU would have no values."""
    import torch.nn.attention.flex_attention as module

    yield module, "create_block_mask", _sampled(module.create_block_mask)


def _sampled(create: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(create)

    @wraps(create)
    def created(*arguments: Any, **options: Any) -> Any:
        mask = create(*arguments, **options)
        given = parameters.bind(*arguments, **options).arguments
        note(mask, share_of(given["mask_mod"], int(given["Q_LEN"]), int(given["KV_LEN"])))
        return mask

    return created


def note(mask: Any, share: float) -> None:
    """Remembers the share of a BlockMask."""
    storage = mask.kv_num_blocks.untyped_storage()
    _shares[storage._cdata] = share
    _alive[storage._cdata] = mask


def share_of(mask_mod: Callable[..., Tensor], queries: int, keys: int) -> float:
    """The share of scores that a mask leaves, at sampled positions; 1 if it reads a GPU."""
    try:
        row = torch.linspace(0, queries - 1, min(queries, SAMPLES)).long()
        column = torch.linspace(0, keys - 1, min(keys, SAMPLES)).long()
        zero = torch.zeros((), dtype=torch.long)
        left = mask_mod(zero, zero, row[:, None], column[None, :])
        return float(left.expand(len(row), len(column)).float().mean())
    except Exception:  # it reads tensors of the GPU, which have no values
        return 1.0


def attention(name: str, tensors: dict[str, Tensor]) -> tuple[Product, ...]:
    """The products of a kernel of flex_attention."""
    query, key = tensors["arg_Q"], tensors["arg_K"]
    batch, heads, length, width = query.shape
    blocks = tensors.get("arg_KV_NUM_BLKS")
    number = blocks.untyped_storage()._cdata if blocks is not None else 0
    share = _shares[number] if number in _alive else 1.0
    times = 5.0 if "backward" in name else 2.0
    return (Product(batch * heads, length, key.shape[2], width, "attention", times * share),)
