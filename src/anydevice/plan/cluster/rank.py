"""One process plays one rank of a world on hollow GPUs: collectives have shapes and no peers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from anydevice.plan.cluster.objects import objects_by_letter
from anydevice.plan.cluster.started import started_here
from anydevice.plan.cluster.world import STAGES, Part, World
from anydevice.virtual.surface import nccl

# Note [One process plays a rank]
# A plan needs to know what one GPU holds and does. Whom a rank talks to decides which collectives
# it joins, and how long these take, but not what it allocates. So one process plays one rank:
#
# - torchrun never starts. Its variables are set, and the program is called in this process. So is
#   what mp.spawn and others would start: Note [What would start other ranks].
# - A store is a HashStore of this process, in which nobody is waited for.
# - A group's backend for CUDA is the hollow one (native/collectives/), which checks shapes and
#   moves nothing. Its backend for the CPU, gloo, is PyTorch's FakeProcessGroup: to a gathering,
#   all ranks give what this one gives.
# - Objects go through `objects.py`: a pipeline's stages send each other the shapes of what they
#   will send. Then the other rank is played too, by another process.

Fake: Any = torch._C._distributed_c10d.FakeProcessGroup
Gloo: Any = c10d.ProcessGroupGloo
HashStore: Any = torch._C._distributed_c10d.HashStore


class _GlooByName(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Fake)


class FakeGloo(metaclass=_GlooByName):
    """In place of ProcessGroupGloo: it waits for nobody."""

    _Options = Gloo._Options
    create_device = Gloo.create_device
    create_default_device = Gloo.create_default_device

    def __new__(cls, store: Any, rank: int, size: int, *options: Any, **more: Any) -> Any:
        """PyTorch's own fake."""
        return Fake._create_internal(rank, size)


@contextmanager
def playing(world: World | None, rank: int = 0) -> Iterator[Part]:
    """Inside the block, this process is that rank of the world, if it asks for one."""
    part = Part(rank, world.size if world else 1)
    with ExitStack() as stack:
        if world:
            stack.enter_context(patch.dict(os.environ, world.environment(rank)))
        for owner, name, value in _without_peers(part, world):
            stack.enter_context(patch.object(owner, name, value, create=True))
        stack.enter_context(objects_by_letter())
        for owner, name, value in _followed(part):
            stack.enter_context(patch.object(owner, name, value))
        yield part


def _without_peers(part: Part, world: World | None) -> Iterator[tuple[Any, str, Any]]:
    """What is different in a process that has no peers."""
    store = HashStore()

    def own_store(*arguments: Any, **options: Any) -> Any:
        return store

    def new_backend(
        name: str, given: Any, rank: int, size: int, timeout: Any, members: Any = ()
    ) -> Any:
        part.size = max(part.size, size)
        group = nccl.c10d.ProcessGroup(given, rank, size)
        return nccl.backend_around(Fake._create_internal(rank, size), group, name)

    def nothing(*arguments: Any, **options: Any) -> None:
        """There is nobody to wait for."""

    def options(self: Any) -> Any:
        return SimpleNamespace(global_ranks_in_group=[], group_name="", _timeout=nccl.TIMEOUT)

    yield sys.modules["torch.distributed.rendezvous"], "_create_c10d_store", own_store
    for owner in (dist, c10d, nccl.c10d):
        yield owner, "TCPStore", own_store
        yield owner, "ProcessGroupGloo", FakeGloo
    yield dist, "monitored_barrier", nothing
    yield c10d, "monitored_barrier", nothing
    yield nccl, "new_backend", new_backend
    yield nccl.c10d.Backend, "_set_default_timeout", nothing
    yield Fake, "_set_sequence_number_for_group", nothing
    yield Fake, "options", property(options)
    yield from started_here(part, world)


def _followed(part: Part) -> Iterator[tuple[Any, str, Any]]:
    """What shows which ranks have separate batches."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group
    from torch.distributed.tensor.experimental._context_parallel import _attention
    from torch.nn.parallel import DistributedDataParallel

    def after(kind: Any, look: Callable[[Any], None]) -> tuple[Any, str, Any]:
        make = kind.__init__

        def made(self: Any, *arguments: Any, **options: Any) -> None:
            make(self, *arguments, **options)
            look(self)

        return kind, "__init__", made

    def averages(size: int) -> None:
        part.averaging = max(part.averaging, size)

    def fully_sharded(group: Any) -> None:
        info = group.mesh_info
        sizes = (getattr(info, "shard_mesh_size", 1), getattr(info, "replicate_mesh_size", 1))
        averages(sizes[0] * sizes[1])
        shapes = (param._orig_size for param in group.fsdp_params)
        if any(len(s) and s[0] % sizes[0] for s in shapes):
            part.unlike.add(part.size - 1)

    def mesh_made(mesh: Any) -> None:
        if names := mesh.mesh_dim_names:
            part.meshes.append(dict(zip(names, mesh.mesh.shape, strict=True)))
            for name, place in zip(names, mesh.get_coordinate() or (), strict=False):
                part.stage = place if name.startswith(STAGES) else part.stage

    enable = _attention._enable_context_parallel_dispatcher_impl

    def share_texts(seq_dim: int, mesh: Any) -> None:
        part.context = max(part.context, mesh.size())
        part.unlike.add(int(mesh.mesh.flatten()[-1]))
        enable(seq_dim, mesh)

    yield _attention, "_enable_context_parallel_dispatcher_impl", share_texts
    yield after(DistributedDataParallel, lambda ddp: averages(ddp.process_group.size()))
    yield after(FullyShardedDataParallel, lambda fsdp: averages(fsdp.process_group.size()))
    yield after(_fsdp_param_group.FSDPParamGroup, fully_sharded)
    yield after(DeviceMesh, mesh_made)
