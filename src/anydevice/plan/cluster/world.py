"""A world of ranks: so many nodes with so many GPUs each, and the rank that a process plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# How meshes name the dimensions over which one model is spread.
OF_ONE_MODEL = ("tp", "pp", "cp", "sp", "ep", "tensor", "pipe", "context", "model")
ADDRESS, PORT = "127.0.0.1", "29500"


@dataclass(frozen=True)
class World:
    """Ranks on nodes, as torchrun numbers them: node by node."""

    nodes: int
    gpus: int  # of each node

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.nodes * self.gpus

    def __str__(self) -> str:
        nodes = "" if self.nodes == 1 else f"{self.nodes} nodes of "
        return f"{nodes}{self.gpus} GPU{'s' * (self.gpus > 1)}"

    def environment(self, rank: int) -> Mapping[str, str]:
        """The variables that torchrun sets for a rank."""
        node, local = divmod(rank, self.gpus)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.gpus),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(self.nodes),
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": PORT,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }


@dataclass
class Part:
    """The rank that a process played, and what its program made of the world.

    Attributes:
        rank: Which one.
        size: How many ranks there are; 1 if the program is no part of a group.
        averaging: How many ranks average their gradients, by DDP or FSDP.
        uneven: Whether some parameter is not cut into equal shards.
        meshes: The sizes of each DeviceMesh, by name.
    """

    rank: int = 0
    size: int = 1
    averaging: int = 0
    uneven: bool = False
    meshes: list[dict[str, int]] = field(default_factory=list)

    @property
    def replicas(self) -> int:
        """How many ranks have separate batches."""
        if self.averaging:
            return self.averaging
        apart = 1
        for sizes in self.meshes[:1]:
            for name, size in sizes.items():
                apart *= size if name.startswith(OF_ONE_MODEL) else 1
        return max(1, self.size // apart)
