"""`torch.distributed.ProcessGroupNCCL` and its options, which a CPU build lacks.

What it makes are native backends (native/collectives/backend.cpp) around a gloo backend each.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch

from anydevice.notices import say_once
from anydevice.virtual import core

VERSION = (2, 28, 9)
TIMEOUT = timedelta(minutes=10)
NAN_CHECK = "TORCH_NCCL_NAN_CHECK"
LOOPBACK = "127.0.0.1"

c10d: Any = torch._C._distributed_c10d  # pybind's classes, of which mypy knows a part


class NCCLConfig(SimpleNamespace):
    """`ProcessGroupNCCL.NCCLConfig`."""

    def __setattr__(self, name: str, value: object) -> None:
        say_once("NCCL's own options have no effect on virtual GPUs: gloo does NCCL's work there.")
        super().__setattr__(name, value)


class Options(c10d.Backend.Options):  # type: ignore[misc]
    """`ProcessGroupNCCL.Options`: its timeout holds; what tunes NCCL is taken and not used."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl", TIMEOUT)
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NCCLConfig()
        self.split_from: Any = None
        self.split_color = 0

    def __deepcopy__(self, memo: object) -> "Options":
        copy = Options(self.is_high_priority_stream)
        copy._timeout, copy.group_name = self._timeout, self.group_name
        vars(copy.config).update(vars(self.config))
        return copy


class _ByName(type):
    """The native backends are not instances of a Python class: their name decides."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, c10d.Backend) and instance.name() == "nccl"


class ProcessGroupNCCL(metaclass=_ByName):
    """`torch.distributed.ProcessGroupNCCL` and its successors; calling it makes a native backend.

    Torch 2.15 makes a ProcessGroupNCCL2 for "nccl", with the group's device after the options.
    """

    Options = Options
    NCCLConfig = NCCLConfig
    NCCL_CTA_POLICY_DEFAULT = 0
    NCCL_CTA_POLICY_EFFICIENCY = 1
    NCCL_CTA_POLICY_ZERO = 2

    def __new__(
        cls,
        store: Any,
        rank: int,
        size: int,
        options: Any = None,
        device: torch.device | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> Any:
        """A backend of a group of `size`, in which this process is `rank`."""
        if isinstance(options, timedelta):
            timeout = options
        elif options is not None:
            timeout = options._timeout
        members = getattr(options, "global_ranks_in_group", ())
        if getattr(options, "split_from", None) is not None:
            _count_split(options.split_from)
        if NAN_CHECK in os.environ:
            core.library().anydevice_set_nan_check(int(os.environ[NAN_CHECK] == "1"))
        return new_backend("nccl", store, rank, size, timeout, members)

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """As `torch.cuda.nccl.version()`."""
        return VERSION

    get_runtime_nccl_version = get_build_nccl_version


def newer(module: Any) -> list[str]:
    """The successors of ProcessGroupNCCL that distributed_c10d.py knows."""
    makers = {
        "ProcessGroupNCCL2": "_create_nccl2_process_group",
        "ProcessGroupNCCLLazy": "_create_nccl_lazy_process_group",
    }
    return [name for name, maker in makers.items() if hasattr(module, maker)]


def methods() -> dict[str, Any]:
    """What distributed_c10d.py calls of ProcessGroupNCCL beyond any backend's methods."""

    def nothing(self: Any, *arguments: Any) -> None:
        """There is no communicator to prepare."""

    split_others = getattr(c10d.Backend, "split", None)

    def split(self: Any, store: Any, ranks: Sequence[int], options: Any) -> Any:
        """The backend of some of the ranks, None on the others: a group of its members."""
        if self.name() != "nccl":
            return split_others(self, store, ranks, options)  # type: ignore[misc]
        rank = torch.distributed.get_rank()
        if rank not in ranks:
            return None
        place = list(ranks).index(rank), len(ranks)
        return new_backend("nccl", store, *place, options._timeout, ranks)

    return {
        "split": split,
        "_set_default_timeout": lambda self, timeout: self.set_timeout(timeout),
        "_add_ephemeral_timeout": nothing,
        "_group_start": nothing,
        "_group_end": nothing,
        "_is_initialized": lambda self: True,
        "comm_split_count": _splits,
        "get_error": lambda self: c10d.ErrorType.SUCCESS,
        "options": property(lambda self: Options()),
        "perform_nocolor_split": lambda self, device: _count_split(self),
        "_set_enable_nan_check": lambda self, on: core.library().anydevice_set_nan_check(int(on)),
        "uid": property(lambda self: 0),
    }


def _count_split(parent: Any) -> None:
    """A communicator is made from the parent's: all its ranks take part, members or not."""
    if (group := _group_of(parent)) is not None:
        torch.ops.anydevice.count_split(group.boxed())


def _splits(backend: Any) -> int:
    group = _group_of(backend)
    return 0 if group is None else int(torch.ops.anydevice.splits(group.boxed()))


def _group_of(backend: Any) -> Any:
    """The process group whose GPUs have this backend; None if there is none."""
    for group in torch.distributed.distributed_c10d._world.pg_map:
        with suppress(RuntimeError):  # a group without GPUs
            if group._get_backend(torch.device("cuda")) is backend:
                return group
    return None


def new_backend(
    name: str, store: Any, rank: int, size: int, timeout: timedelta, members: Sequence[int]
) -> Any:
    """The native backend, whose gloo meets those of the other members in `store`."""
    options = c10d.ProcessGroupGloo._Options()
    options._devices = [_network()]
    options._timeout = max(timeout, TIMEOUT)  # NCCL's is for collectives, not for meeting
    options._threads = 1  # the native backend asks for one thing after another
    options.global_ranks_in_group = list(range(size))  # splitting counts on them
    group = c10d.ProcessGroup(store, rank, size)
    gloo = c10d.ProcessGroupGloo(_not_met_before(store, size, members), rank, size, options)
    gloo.set_timeout(timeout)
    return backend_around(gloo, group, name)


def backend_around(gloo: Any, group: Any, name: str) -> Any:
    """The native backend of a group, which has this one for the CPU."""
    group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, gloo)
    torch.ops.anydevice.add_backend(group.boxed(), name)
    return group._get_backend(torch.device("cuda"))


def _not_met_before(store: Any, size: int, members: Sequence[int]) -> Any:
    """NCCL can be initialised again under torchrun, where gloo finds addresses of the last time.

    A group's name, and so its store, may have been that of other members then.
    """
    who = f"{size} of {','.join(map(str, members)) or 'all'}"
    times_met = (store.add(f"arrivals, {who}", 1) - 1) // size
    return c10d.PrefixStore(f"meeting {times_met}, {who}/", store)


def _network() -> Any:
    """Where gloo listens: a laptop without a network has its loopback, under any name."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "1")
    here = here or os.environ.get("MASTER_ADDR", "") in (LOOPBACK, "localhost", "::1")
    if here and not os.environ.get("GLOO_SOCKET_IFNAME"):
        return c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)
    return c10d.ProcessGroupGloo.create_default_device()
