"""The versions of torch that the virtual GPUs were tested with."""

import os
import re

from anydevice.errors import UsageError
from anydevice.notices import say_once
from anydevice.virtual import build

TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")  # docs/versions.md has the figures

# In the environment, so that processes that this one starts do not repeat it.
SAID = "ANYDEVICE_UNTESTED_TORCH"


def announce() -> None:
    """Says once if torch is newer than all that were tested."""
    here = build.torch_version()
    if newer_than_tested(here) and os.environ.get(SAID) != here:
        os.environ[SAID] = here
        say_once(
            f"Virtual GPUs are tested up to torch {TESTED[-1]}; this is {here}: what it has "
            "changed is left out, and `anydevice devices --issue` lists that."
        )


def report() -> list[str]:
    """Lines for a bug report: what of the virtual GPUs does not work with the torch here."""
    from anydevice.virtual import machine

    title = f"virtual GPUs (tested with torch {', '.join(TESTED)})"
    try:
        if machine.enabled():
            left_out = machine.left_out()
        elif not build.is_built():
            return [f"{title}: not built yet"]
        else:
            with machine.virtual_gpus():
                left_out = machine.left_out()
    except UsageError as error:
        return [f"{title}: {error}"]
    lines = [f"{title}: {len(left_out)} of their parts do not match this torch"]
    return lines + [f"left out: {line}" for line in left_out]


def newer_than_tested(version: str) -> bool:
    """Whether a version is of a later minor release than the newest tested."""
    return _release(version) > _release(TESTED[-1])


def _release(version: str) -> tuple[int, ...]:
    """2 and 16 of 2.16.0a0+git123."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
