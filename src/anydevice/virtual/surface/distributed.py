"""torch.distributed: NCCL's names where it looks for them, and gloo for CUDA tensors."""

from collections.abc import Iterator
from typing import Any

import torch


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """What torch.distributed found out, when it was imported, about NCCL."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    import torch.distributed.constants
    import torch.distributed.distributed_c10d

    from anydevice.virtual.surface import nccl

    for owner in (dist, dist.distributed_c10d, nccl.c10d):
        for name in ("ProcessGroupNCCL", *nccl.newer(dist.distributed_c10d)):
            yield owner, name, nccl.ProcessGroupNCCL
    for owner in (torch.distributed.constants, dist.distributed_c10d):
        yield owner, "default_pg_nccl_timeout", nccl.TIMEOUT
    yield dist.distributed_c10d, "_NCCL_AVAILABLE", True
    yield nccl.c10d.ProcessGroup, "_register_backend", _registering_gloo(nccl)
    for name in ("empty_strided_p2p", "rendezvous"):
        yield nccl.c10d._SymmetricMemory, name, staticmethod(_refuse_symmetric_memory)
    for name, value in nccl.methods().items():
        yield nccl.c10d.Backend, name, value


def without_values() -> Iterator[tuple[Any, str, Any]]:
    """On hollow GPUs: ranks cannot read from each other whether their networks are alike."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    import torch.nn.parallel.distributed as parallel

    unpack: Any = dist.distributed_c10d._tensor_to_object

    def unpack_from_host(tensor: torch.Tensor, *arguments: Any) -> Any:
        if tensor.is_cuda:
            raise NotImplementedError(
                "hollow GPUs have no values, and an object is sent as values: send objects in a "
                'group for the CPU, new_group(backend="gloo").'
            )
        return unpack(tensor, *arguments)

    yield parallel, "_verify_param_shape_across_processes", lambda *arguments: None
    yield dist.distributed_c10d, "_tensor_to_object", unpack_from_host


def names() -> dict[str, Any]:
    """What torch._C calls them."""

    def version() -> int:
        from anydevice.virtual.surface.nccl import VERSION

        major, minor, patch = VERSION
        return major << 32 | minor << 16 | patch

    return {"_nccl_version": version, "_nccl_version_suffix": lambda: b""}


def _refuse_symmetric_memory(*arguments: Any, **options: Any) -> None:
    raise NotImplementedError(
        "symmetric memory is what real GPUs map from each other; virtual ones have collectives."
    )


def _registering_gloo(nccl: Any) -> Any:
    c10d = nccl.c10d
    register = c10d.ProcessGroup._register_backend

    def _register_backend(group: Any, device: torch.device, kind: Any, backend: Any = None) -> None:
        """Gloo on a CPU build ends the process when it is given a CUDA tensor: it gets ours."""
        gloo = getattr(backend, "wrapped_pg", backend)
        if device.type == "cuda" and isinstance(gloo, c10d.ProcessGroupGloo):
            store = c10d.PrefixStore("cuda by gloo/", group.get_group_store())
            how, place = gloo.options, (group.rank(), group.size())
            members = how.global_ranks_in_group
            backend = nccl.new_backend("gloo", store, *place, how._timeout, members)
            kind = c10d.ProcessGroup.BackendType.CUSTOM
        register(group, device, kind, backend)

    return _register_backend
