"""The rows of a batch: how many there are, some of them, or all in parts."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from anydevice.errors import UsageError
from anydevice.train.data.samples import make_known


def sample_count(batch: Any) -> int:
    """How many samples a batch holds: the length of its first tensor."""
    held = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(held, Tensor):
        held = next((leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)), None)
    if held is None and make_known(batch):
        return sample_count(dict(batch))
    if held is None or held.dim() == 0:
        raise UsageError(
            "expected a batch with samples along dimension 0 of its tensors, got "
            f"{type(batch).__name__}: give (inputs, target), a dictionary of tensors, or step=."
        )
    samples: int = held.size(0)  # a third of len()'s time
    return samples


def rows_of(batch: Any, rows: slice, size: int) -> Any:
    """These rows of a batch of `size`; anything but tensors of that length stays as it is."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor[rows] if tensor.dim() and len(tensor) == size else tensor

    return tree_map_only(Tensor, cut, batch)


def parts_of(batch: Any, parts: int) -> list[Any]:
    """The batch in at most `parts` parts."""
    size = sample_count(batch)
    return [rows_of(batch, rows, size) for rows in slices(size, parts)]


def slices(size: int, parts: int) -> list[slice]:
    """The rows of each part: as many in each, but for the last."""
    each = -(-size // parts)
    return [slice(start, min(start + each, size)) for start in range(0, size, each)]
