"""torch.distributed: the backend that goes by NCCL's name, and gloo for tensors on virtual GPUs.

Both are native/collectives.cpp, which runs a gloo of its own on the tensors' host aliases.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from anydevice.notices import say_once

NCCL = (2, 28, 9)
TIMEOUT = timedelta(minutes=10)
LOOPBACK = "127.0.0.1"

c10d: Any = torch._C._distributed_c10d if dist.is_available() else SimpleNamespace(Backend=object)


class Options(getattr(c10d.Backend, "Options", object)):  # type: ignore[misc]
    """`ProcessGroupNCCL.Options`: the timeout is respected, what tunes NCCL is taken as it is."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl", TIMEOUT)
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NCCLConfig()
        self.split_from: Any = None
        self.split_color = 0

    def __deepcopy__(self, memo: object) -> "Options":
        copy = Options(self.is_high_priority_stream)
        copy._timeout, copy.group_name = self._timeout, self.group_name
        copy.config.__dict__.update(self.config.__dict__)
        return copy


class NCCLConfig(SimpleNamespace):
    """`ProcessGroupNCCL.NCCLConfig`."""

    def __setattr__(self, name: str, value: object) -> None:
        say_once("NCCL's own options have no effect on virtual GPUs: gloo does NCCL's work there.")
        super().__setattr__(name, value)


class _Nccl(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, c10d.Backend) and instance.name() == "nccl"


class ProcessGroupNCCL(metaclass=_Nccl):
    """`torch.distributed.ProcessGroupNCCL`: what it makes are native backends that go by its name."""

    Options = Options
    NCCLConfig = NCCLConfig
    NCCL_CTA_POLICY_DEFAULT = 0
    NCCL_CTA_POLICY_EFFICIENCY = 1
    NCCL_CTA_POLICY_ZERO = 2

    def __new__(
        cls, store: Any, rank: int, size: int, options: Any = None, timeout: timedelta = TIMEOUT
    ) -> Any:
        """A backend of a group of `size`, in which this process is `rank`."""
        if isinstance(options, timedelta):
            timeout = options
        elif options is not None:
            timeout = options._timeout
        return new_backend("nccl", store, rank, size, timeout)

    @staticmethod
    def get_build_nccl_version() -> tuple[int, int, int]:
        """As `torch.cuda.nccl.version()`."""
        return NCCL

    get_runtime_nccl_version = get_build_nccl_version


def new_backend(name: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """The native backend around a gloo of its own, which meets the other ranks' in `store`."""
    options = c10d.ProcessGroupGloo._Options()
    options._devices = [_network()]
    options._timeout = timeout
    options.global_ranks_in_group = list(range(size))  # splitting counts on them
    options._threads = 1  # the native backend asks for one thing after another
    group = c10d.ProcessGroup(store, rank, size)
    gloo = c10d.ProcessGroupGloo(_not_met_before(store, size), rank, size, options)
    group._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, gloo)
    torch.ops.anydevice.add_backend(group.boxed(), name)
    return group._get_backend(torch.device("cuda"))


def _not_met_before(store: Any, size: int) -> Any:
    """NCCL can be initialised again under torchrun, where gloo finds addresses of the last time."""
    times_met = (store.add("arrivals", 1) - 1) // size
    return c10d.PrefixStore(f"meeting {times_met}/", store)


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    major, minor, patch = NCCL
    return {
        "_nccl_version": lambda: major << 32 | minor << 16 | patch,
        "_nccl_version_suffix": lambda: b"",
    }


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """NCCL's names where torch.distributed looks for them, and gloo for CUDA tensors."""
    if not dist.is_available():
        return
    import torch.distributed.constants

    for owner in (dist, dist.distributed_c10d, c10d):
        yield owner, "ProcessGroupNCCL", ProcessGroupNCCL
    for owner in (torch.distributed.constants, dist.distributed_c10d):
        yield owner, "default_pg_nccl_timeout", TIMEOUT
    yield dist.distributed_c10d, "_NCCL_AVAILABLE", True
    yield c10d.ProcessGroup, "_register_backend", _registering_gloo(c10d.ProcessGroup)
    for name, value in _methods_of_nccl().items():
        yield c10d.Backend, name, value


def _methods_of_nccl() -> dict[str, Any]:
    """What distributed_c10d.py calls of ProcessGroupNCCL beyond any backend's methods."""

    def nothing(self: Any, *arguments: Any) -> None:
        """There is no communicator to prepare."""

    return {
        "_set_default_timeout": lambda self, timeout: self.set_timeout(timeout),
        "_add_ephemeral_timeout": nothing,
        "_group_start": nothing,
        "_group_end": nothing,
        "_is_initialized": lambda self: True,
        "comm_split_count": lambda self: 0,
        "get_error": lambda self: c10d.ErrorType.SUCCESS,
        "options": property(lambda self: Options()),
        "perform_nocolor_split": nothing,
        "uid": property(lambda self: 0),
    }


def _registering_gloo(group_type: Any) -> Any:
    register = group_type._register_backend

    def _register_backend(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        """Gloo on a CPU build ends the process when it is given a CUDA tensor: it gets ours."""
        gloo = getattr(backend, "wrapped_pg", backend)
        if device.type == "cuda" and isinstance(gloo, c10d.ProcessGroupGloo):
            store = c10d.PrefixStore("cuda by gloo/", group.get_group_store())
            timeout = gloo.options._timeout
            backend = new_backend("gloo", store, group.rank(), group.size(), timeout)
            kind = c10d.ProcessGroup.BackendType.CUSTOM
        register(group, device, kind, backend)

    return _register_backend


def _network() -> Any:
    """Where gloo listens: a laptop without a network has its loopback, whatever its name is."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "1")
    here = here or os.environ.get("MASTER_ADDR", "") in (LOOPBACK, "localhost", "::1")
    if here and not os.environ.get("GLOO_SOCKET_IFNAME"):
        return c10d.ProcessGroupGloo.create_device(hostname=LOOPBACK)
    return c10d.ProcessGroupGloo.create_default_device()
