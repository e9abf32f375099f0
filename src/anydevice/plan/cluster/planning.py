"""Plans a program of many ranks: rank 0 is played, and others where they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from anydevice.devices.catalogue import card
from anydevice.plan.cluster.answer import ClusterVerdict, Role
from anydevice.plan.cluster.networks import network
from anydevice.plan.cluster.rank import playing
from anydevice.plan.cluster.roles import rooms
from anydevice.plan.cluster.timing import timed
from anydevice.plan.cluster.world import World
from anydevice.plan.hollow.gpus import HollowGPUs
from anydevice.plan.hollow.run import AMPLE, HollowRun


@dataclass(frozen=True)
class Cluster:
    """The GPUs of a cluster, and what is between them.

    Args:
        world: How many nodes and GPUs.
        network: As --network has it; by default what is usual for the card.
    """

    world: World
    network: str | None = None

    def verdict(
        self, hollow: HollowGPUs, program: Callable[[], object], name: str
    ) -> ClusterVerdict:
        """What a program takes there."""
        kind = card(hollow.kind)
        links = network(kind, self.world.gpus, self.network)
        context = hollow.taken
        runs = rooms(
            partial(_played, hollow, self.world, program, name),
            kind.memory,
            context.low,
            context.high,
            AMPLE,
            shown=hollow.shown,
            waiting=f"{name} is still running on hollow {kind.kind}s",
        )
        part = runs[0].part
        world = self.world
        if part.size != world.size:  # as mp.spawn or the program itself has it
            world = World(max(1, part.size // world.gpus), min(world.gpus, part.size))
        time = timed(runs, kind, links, world.size)
        return ClusterVerdict(
            world, _roles(runs), links, part.replicas, time, _notes(runs, world, links.inside.title)
        )


def _played(
    hollow: HollowGPUs,
    world: World,
    program: Callable[[], object],
    name: str,
    rank: int,
    room: int,
) -> HollowRun:
    """in a separate process: the program as this rank."""
    gpus = replace(hollow, count=world.gpus, around=partial(playing, world, rank))
    run = gpus.call(program, name, room)
    return replace(run, gpus=1, each=[])  # one GPU is this rank's


def _roles(runs: dict[int, HollowRun]) -> list[Role]:
    piped = any(e.name in ("send", "recv") for run in runs.values() for e in run.exchanges)
    roles = []
    for place, (rank, run) in enumerate(runs.items()):
        number = place if run.part.stage is None else run.part.stage
        stage = f", stage {number}" if piped and len(runs) > 1 else ""
        last = ", the last" if not piped and place else ""
        roles.append(Role(rank, run, f"rank {rank}{stage}{last}"))
    return roles


def _notes(runs: dict[int, HollowRun], world: World, inside: str) -> list[str]:
    notes = dict.fromkeys(note for run in runs.values() for note in run.notes)
    played = ", ".join(map(str, runs))
    part = runs[0].part
    others = (
        "All other ranks are taken to be like it."
        if len(runs) == 1
        else ("All other ranks are taken to be like one of these.")
    )
    ranks = "rank" if len(runs) == 1 else "ranks"
    batches = f"{part.replicas} of {world.size} ranks have separate batches."
    return [*notes, f"Played: {ranks} {played}. {others} {batches}"]
