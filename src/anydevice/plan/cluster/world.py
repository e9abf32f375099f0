"""A world of ranks: so many nodes with so many GPUs each, and the rank that a process plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

# How meshes name the dimensions over which one model is spread.
OF_ONE_MODEL = ("tp", "pp", "tensor", "pipe", "model")
STAGES = ("pp", "pipe")
OF_ONE_TEXT = ("cp", "sp", "context", "ulysses", "ring")
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
        context: How many ranks share a text, by PyTorch's context parallelism.
        unlike: Ranks that take other memory: the last one, if some parameter is not cut into equal
            shards; the last part of a text, which attends to all parts before it.
        meshes: The sizes of each DeviceMesh, by name.
        stage: This rank's place in a mesh's pipeline; None if no mesh has one.
        sharing: Whether other processes of the program train a network on the same GPU.
    """

    rank: int = 0
    size: int = 1
    averaging: int = 0
    context: int = 1
    unlike: set[int] = field(default_factory=set)
    meshes: list[dict[str, int]] = field(default_factory=list)
    stage: int | None = None
    sharing: bool = False

    def averages(self, size: int) -> None:
        """So many ranks average their gradients."""
        self.averaging = max(self.averaging, size)

    @property
    def replicas(self) -> int:
        """How many ranks have separate batches."""
        return max(1, (self.averaging or self.size // self._product(OF_ONE_MODEL)) // self.texts)

    @property
    def texts(self) -> int:
        """How many ranks have a part each of the same texts."""
        named = self._product(OF_ONE_TEXT)
        return max(self.context, named if not self.averaging or self.averaging > named else 1)

    def _product(self, names: tuple[str, ...]) -> int:
        """Of the sizes of the first mesh's dimensions that are called so."""
        sizes = self.meshes[0] if self.meshes else {}
        return prod(size for name, size in sizes.items() if name.startswith(names))
