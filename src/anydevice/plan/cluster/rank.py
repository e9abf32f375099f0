"""One process plays one rank of a world on hollow GPUs: collectives have shapes and no peers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from anydevice.plan.cluster.objects import objects_by_letter
from anydevice.plan.cluster.started import started_here, started_when_loaded
from anydevice.plan.cluster.world import STAGES, Part, World
from anydevice.virtual.loading import Waiting
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

FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"
FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel._attention"

Patches = Callable[[], Iterator[tuple[Any, str, Any]]]
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
    later = Waiting()
    with ExitStack() as stack:

        def change(patches: Patches) -> None:
            for owner, name, value in patches():
                stack.enter_context(patch.object(owner, name, value, create=True))

        stack.callback(later.forget)
        if world:
            stack.enter_context(patch.dict(os.environ, world.environment(rank)))
        change(lambda: _without_peers(part, world))
        stack.enter_context(objects_by_letter())
        change(lambda: _followed(part))
        when_loaded = {**started_when_loaded(part, world), **_followed_when_loaded(part)}
        for module, patches in when_loaded.items():
            later.wait(module, partial(change, patches))
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
    from torch.nn.parallel import DistributedDataParallel

    def mesh_made(mesh: Any) -> None:
        if names := mesh.mesh_dim_names:
            part.meshes.append(dict(zip(names, mesh.mesh.shape, strict=True)))
            for name, place in zip(names, mesh.get_coordinate() or (), strict=False):
                part.stage = place if name.startswith(STAGES) else part.stage

    yield _after(DistributedDataParallel, lambda ddp: part.averages(ddp.process_group.size()))
    yield _after(DeviceMesh, mesh_made)


def _followed_when_loaded(part: Part) -> dict[str, Patches]:
    """The same of modules that take long to import, by their names."""

    def fully_sharded(group: Any) -> None:
        info = group.mesh_info
        sizes = (getattr(info, "shard_mesh_size", 1), getattr(info, "replicate_mesh_size", 1))
        part.averages(sizes[0] * sizes[1])
        shapes = (param._orig_size for param in group.fsdp_params)
        if any(len(s) and s[0] % sizes[0] for s in shapes):
            part.unlike.add(part.size - 1)

    def fsdp() -> Iterator[tuple[Any, str, Any]]:
        kind = sys.modules[FSDP].FullyShardedDataParallel
        yield _after(kind, lambda made: part.averages(made.process_group.size()))

    def fsdp2() -> Iterator[tuple[Any, str, Any]]:
        yield _after(sys.modules[FSDP2].FSDPParamGroup, fully_sharded)

    def parts_of_texts() -> Iterator[tuple[Any, str, Any]]:
        module = sys.modules[CONTEXT_PARALLEL]
        enable = module._enable_context_parallel_dispatcher_impl

        def share_texts(seq_dim: int, mesh: Any) -> None:
            part.context = max(part.context, mesh.size())
            part.unlike.add(int(mesh.mesh.flatten()[-1]))
            enable(seq_dim, mesh)

        yield module, "_enable_context_parallel_dispatcher_impl", share_texts

    return {FSDP: fsdp, FSDP2: fsdp2, CONTEXT_PARALLEL: parts_of_texts}


def _after(kind: Any, look: Callable[[Any], None]) -> tuple[Any, str, Any]:
    """Each new object of this class is looked at."""
    make = kind.__init__

    def made(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        look(self)

    return kind, "__init__", made
