"""Objects between ranks: all say what this one says, except what is sent from one to another."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from anydevice.plan.hollow.isolated import ask, tell


@dataclass(frozen=True)
class Letter:
    """Objects that a rank sends; `key` says from whom, to whom and the how many-th."""

    sender: int
    key: str
    objects: bytes


@dataclass(frozen=True)
class Awaited:
    """A letter that a rank waits for."""

    sender: int
    key: str


@contextmanager
def objects_by_letter() -> Iterator[None]:
    """Inside the block, objects go from process to process of one plan."""
    with ExitStack() as stack:
        for name, function in vars(_Objects(Counter())).items():
            for owner in (dist, c10d):
                if hasattr(owner, name):
                    stack.enter_context(patch.object(owner, name, function))
        yield


def _copy(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def _rank(group: Any, given: int | None, group_rank: int | None) -> int:
    if given is None and group_rank is None:
        return 0
    if given is not None:
        return given
    return dist.get_global_rank(group or dist.group.WORLD, group_rank)  # type: ignore[arg-type]


class _Objects:
    """The functions of torch.distributed for objects, by name."""

    def __init__(self, count: Counter[str]) -> None:
        def post(key: str, objects: Any) -> None:
            count[key] += 1
            here = dist.get_rank()
            tell(Letter(here, f"{key}/{count[key]}", pickle.dumps(objects)))

        def receive(sender: int, key: str) -> Any:
            count[key] += 1
            return pickle.loads(ask(Awaited(sender, f"{key}/{count[key]}")))

        def all_gather_object(object_list: Any, obj: Any, group: Any = None) -> None:
            object_list[:] = [_copy(obj) for _ in object_list]

        def gather_object(
            obj: Any,
            object_gather_list: Any = None,
            dst: int | None = None,
            group: Any = None,
            group_dst: int | None = None,
        ) -> None:
            if object_gather_list is not None:
                all_gather_object(object_gather_list, obj)

        def broadcast_object_list(
            object_list: Any,
            src: int | None = None,
            group: Any = None,
            device: Any = None,
            group_src: int | None = None,
        ) -> None:
            sender, ranks = _rank(group, src, group_src), dist.get_process_group_ranks(group)
            key = f"{sender}>all of {len(ranks)} from {ranks[0]}"
            if sender == dist.get_rank():
                post(key, list(object_list))
            else:
                object_list[:] = receive(sender, key)

        def scatter_object_list(
            scatter_object_output_list: Any,
            scatter_object_input_list: Any = None,
            src: int | None = None,
            group: Any = None,
            group_src: int | None = None,
        ) -> None:
            sender, ranks = _rank(group, src, group_src), dist.get_process_group_ranks(group)
            key = f"{sender}>each of {len(ranks)} from {ranks[0]}"
            if sender == dist.get_rank():
                post(key, list(scatter_object_input_list))
                objects = scatter_object_input_list
            else:
                objects = receive(sender, key)
            scatter_object_output_list[0] = objects[ranks.index(dist.get_rank())]

        def send_object_list(
            object_list: Any,
            dst: int | None = None,
            group: Any = None,
            device: Any = None,
            group_dst: int | None = None,
            use_batch: bool = False,
        ) -> None:
            post(f"{dist.get_rank()}>{_rank(group, dst, group_dst)}", list(object_list))

        def recv_object_list(
            object_list: Any,
            src: int | None = None,
            group: Any = None,
            device: Any = None,
            group_src: int | None = None,
            use_batch: bool = False,
        ) -> int:
            sender = _rank(group, src, group_src)
            object_list[:] = receive(sender, f"{sender}>{dist.get_rank()}")
            return sender

        self.all_gather_object = all_gather_object
        self.gather_object = gather_object
        self.broadcast_object_list = broadcast_object_list
        self.scatter_object_list = scatter_object_list
        self.send_object_list = send_object_list
        self.recv_object_list = recv_object_list
