"""The state of every source of random numbers that a training may draw from."""

import random
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device, data: Any = None) -> dict[str, Any]:
    """Python's, NumPy's, the CPU's and the device's, and those of a DataLoader's own generators."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state[device.type] = torch.get_device_module(device).get_rng_state(device)
    state["data"] = [generator.get_state() for generator in _generators(data)]
    return state


def set_random_state(state: dict[str, Any], device: torch.device, data: Any = None) -> None:
    """What was drawn after `state` was taken is drawn again from here on."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(state[device.type], device)
    for generator, kept in zip(_generators(data), state["data"], strict=False):
        generator.set_state(kept)


def _generators(data: Any) -> list[torch.Generator]:
    """Those that were given to a DataLoader or its sampler."""
    owners = (data, getattr(data, "sampler", None))
    found = (getattr(owner, "generator", None) for owner in owners)
    return [generator for generator in found if isinstance(generator, torch.Generator)]
