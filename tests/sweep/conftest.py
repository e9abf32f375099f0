"""What the tests of sweeps share: the server of a sweep's runs need not import torch each time."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from anydevice.sweep.processes import pool

from ..forked import Child


@pytest.fixture(autouse=True)
def forked_servers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; sweeps of programs that tests start are as users have them."""
    if request.node.get_closest_marker("fresh"):
        return
    stands_in = SimpleNamespace(Popen=started, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(pool, "subprocess", stands_in)


def started(command: list[str], **options: Any) -> Child:
    given = {number: number for number in (1, 2, *options["pass_fds"])}
    return Child(command[1:], given, session=True)
