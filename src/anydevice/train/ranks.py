"""The processes that train together, one a device, as torchrun starts them."""

import atexit
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from anydevice import system

MINIMUM = 2  # of ranks: one process trains alone
HOST = "gloo"  # messages between hosts do not wait for devices
_met: dict[str, Any] = {}


class Ranks:
    """This process's number among them, and how they agree."""

    def __init__(self, device: torch.device) -> None:
        if not dist.is_initialized():
            _join(device)
        self.device = device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.host: Any = dist.new_group(backend=HOST)
        self.homes: list[tuple[str, int]] = self.gather((_machine(), os.getpid()))

    @classmethod
    def here(cls, device: torch.device) -> "Ranks":
        """Those of this process, which meet once."""
        group = dist.group.WORLD if dist.is_initialized() else None
        if group is None or _met.get("group") is not group:
            _met.update(ranks=cls(device), group=dist.group.WORLD)
        ranks: Ranks = _met["ranks"]
        return ranks

    @property
    def first(self) -> bool:
        """Whether this is the rank that shows and writes."""
        return self.rank == 0

    def gather(self, thing: Any) -> list[Any]:
        """What each rank gives, in the ranks' order."""
        things: list[Any] = [None] * self.world
        dist.all_gather_object(things, thing, group=self.host)
        return things

    def told(self, thing: Any = None) -> Any:
        """What the first rank gives."""
        box = [thing]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def any(self, mine: bool) -> bool:
        """Whether it is so on any rank."""
        flag = torch.tensor(int(mine))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.host)
        return bool(flag)

    def same_state(self, network: nn.Module) -> None:
        """Parameters and buffers as the first rank has them."""
        for tensor in (*network.parameters(), *network.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def same_buffers(self, network: nn.Module) -> None:
        """Running statistics as the first rank has them, which DDP takes for those of all."""
        for buffer in network.buffers():
            dist.broadcast(buffer, src=0)


def together() -> bool:
    """Whether this process is one of several that train together."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() >= MINIMUM
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) >= MINIMUM


def own_device(device: torch.device) -> torch.device:
    """Of the GPUs that look the same to every rank, this rank's: "cuda:0" is "cuda:1" on rank 1."""
    if not together() or device.index != 0:
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device(device.type, local if local < torch.accelerator.device_count() else 0)


def _join(device: torch.device) -> None:
    """The group of all ranks, until this process ends; one that the user made is left as it is."""
    if device.type == "cpu":
        dist.init_process_group("gloo")
    else:
        torch.accelerator.set_device_index(device)
        backend = dist.get_default_backend_for_device(device)
        dist.init_process_group(f"cpu:gloo,{device.type}:{backend}", device_id=device)
    atexit.register(_leave)


def leave_at_once() -> None:
    """Has this process end without the handshakes that other ranks may no longer answer."""
    atexit.unregister(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _machine() -> str:
    """The same for processes that see each other's numbers."""
    return f"{socket.gethostname()} {system.process_space()}"
