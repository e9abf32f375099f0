"""Whether the memory statistics agree with each other and with the values that are there."""

from collections import defaultdict
from collections.abc import Iterable

import torch

from tests.conformance.agree import DisagreementError
from tests.conformance.random_programs.values import Twin

ROUNDED_TO = 512


def storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """Those of a dense tensor, or of the parts of a sparse one."""
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    else:
        parts = [tensor]
    return [part.untyped_storage() for part in parts]


def held(values: Iterable[Twin]) -> dict[int, int]:
    """For each GPU, the bytes of the blocks behind the values."""
    sizes: dict[tuple[int, int], int] = {}
    for value in values:
        for storage in storages(value.gpu):
            if storage.device.type == "cuda":
                rounded = -(-storage.nbytes() // ROUNDED_TO) * ROUNDED_TO
                sizes[storage.device.index, storage._cdata] = rounded
    found: dict[int, int] = defaultdict(int)
    for (device, _), size in sizes.items():
        found[device] += size
    return found


def check(values: Iterable[Twin], before: list[int]) -> None:
    """Raises if memory is allocated that no value holds, or the figures contradict each other."""
    wanted = held(values)
    snapshot = torch.cuda.memory_snapshot()
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        blocks = [b for s in snapshot if s["device"] == device for b in s["blocks"]]
        active = [b["size"] for b in blocks if b["state"] == "active_allocated"]
        segments = [s["total_size"] for s in snapshot if s["device"] == device]
        figures = {
            "the blocks of its snapshot": sum(active),
            "the bytes of its values": wanted[device] + before[device],
            "both of its pools": sum(
                stats[f"allocated_bytes.{pool}_pool.current"] for pool in ("small", "large")
            ),
        }
        for what, figure in figures.items():
            if figure != allocated:
                fail(device, f"{allocated} bytes are allocated, and {what} have {figure}")
        if len(active) != stats["allocation.all.current"]:
            fail(device, f"{stats['allocation.all.current']} allocations in {len(active)} blocks")
        if sum(segments) != torch.cuda.memory_reserved(device):
            fail(device, "what is reserved is not the sum of the segments")
        for figure in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
            if stats[f"{figure}.all.peak"] < stats[f"{figure}.all.current"]:
                fail(device, f"the peak of {figure} is under its current value")


def fail(device: int, text: str) -> None:
    raise DisagreementError(f"cuda:{device}: {text}")
