"""Out of memory: what holds it, a bound for the batch, and the command that finds the largest."""

import gc
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from anydevice.devices.catalogue import card
from anydevice.devices.explain.fix import users_of
from anydevice.devices.explain.scene import Scene
from anydevice.errors import UsageError
from anydevice.frames import is_own
from anydevice.text import size_text

BATCH_OPTION = re.compile(r"""["'](--?(?:[\w-]*batch[-_]?size|bs))["']""")
OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory\. Tried to allocate (?P<tried>[\d.]+ \w+)\. GPU (?P<gpu>\d+) "
    r"has a total capacity of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) is free"
    r".*?Of the allocated memory (?P<allocated>[\d.]+ \w+) is allocated"
)
PARAMETERS, GRADIENTS, STATES = "parameters", "gradients", "the optimizer's state"
OTHERS = "activations and others"
LITTLE = 0.1
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def out_of_memory(found: re.Match[str], traceback: list[Scene]) -> str:
    """The explanation of PyTorch's error, from the match of `OUT_OF_MEMORY` in its text."""
    gpu = int(found["gpu"])
    sizes = {name: _size(found[name]) for name in ("tried", "total", "free", "allocated")}
    held = holding(gpu)
    others = max(0, sizes["allocated"] - sum(held.values()))
    users = users_of(traceback)
    place = f"{users[0].place}: " if users else ""
    lines = [
        f"{place}cuda:{gpu} has {size_text(sizes['total'])}, of which {size_text(sizes['free'])} "
        f"are free, and this needs {size_text(sizes['tried'])}."
    ]
    if holds := [f"{n} {size_text(s)}" for n, s in {**held, OTHERS: others}.items() if s]:
        lines.append(f"  It holds: {', '.join(holds)}.")
    if held and others + sizes["tried"] < LITTLE * sizes["total"]:
        fix = "an optimizer with less state, lower precision, or several GPUs (FSDP): a smaller "
        fix += "batch frees little."
    else:
        fix = "a smaller batch, or mixed precision."
        lines += _bound(held, sizes, traceback)
    return "\n".join([*lines, f"  Fix: {fix} {_command(gpu)}"])


def _size(text: str) -> int:
    """Of a figure of PyTorch's, `2.00 MiB` or `0 bytes`."""
    number, unit = text.split()
    return int(float(number) * UNITS[unit])


def holding(gpu: int) -> dict[str, int]:
    """The bytes on a GPU that networks and optimizers hold; what autograd keeps is not seen."""
    modules, tensors, optimizers = [], [], []
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance() would run code of proxies
        if issubclass(kind, nn.Module):
            modules.append(thing)
        elif issubclass(kind, Tensor):
            tensors.append(thing)
        elif issubclass(kind, torch.optim.Optimizer):
            optimizers.append(thing)
    weights = [w for m in modules for w in (*m._parameters.values(), *m._buffers.values())]
    seen: set[int] = set()
    kinds: dict[str, Iterable[Tensor | None]] = {
        PARAMETERS: weights,
        GRADIENTS: [t.grad for t in tensors if t.is_leaf and t.requires_grad],
        STATES: [t for o in optimizers for state in o.state.values() for t in _tensors(state)],
    }
    sums = {name: _bytes(found, gpu, seen) for name, found in kinds.items()}
    return {name: size for name, size in sums.items() if size}


def _tensors(state: object) -> list[Tensor]:
    values = state.values() if isinstance(state, dict) else ()
    return [value for value in values if isinstance(value, Tensor)]


def _bytes(tensors: Iterable[Tensor | None], gpu: int, seen: set[int]) -> int:
    """Of storages on this GPU that were not counted before."""
    total = 0
    for tensor in tensors:
        if tensor is None or tensor.device != torch.device("cuda", gpu):
            continue
        if tensor.layout != torch.strided or is_lazy(tensor):
            continue
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            total += storage.nbytes()
    return total


def _bound(held: dict[str, int], sizes: dict[str, int], traceback: list[Scene]) -> list[str]:
    """A line on the batch, if its size is known. The step was not at its end: an upper bound."""
    batch = _batch(traceback)
    fixed = held.get(STATES, 0) + 2 * held.get(PARAMETERS, 0)  # there will be gradients, too
    grows = sizes["allocated"] + sizes["tried"] - sum(held.values())
    most = min(batch - 1, batch * (sizes["total"] - fixed) // max(1, grows))
    if most < 1:
        return []
    return [f"  A batch of {batch} does not fit; the largest that does is at most {most}."]


def _batch(traceback: list[Scene]) -> int:
    """The first dimension of what the network was given; 0 if no network was running."""
    for scene in reversed(traceback):
        local = scene.frame.f_locals
        if scene.frame.f_code.co_name == "forward" and isinstance(local.get("self"), nn.Module):
            given = (one.value for one in scene.arguments if isinstance(one.value, Tensor))
            return next((tensor.shape[0] for tensor in given if tensor.dim()), 0)
    return 0


def _command(gpu: int) -> str:
    """What finds the largest batch."""
    try:
        kind = f"--gpu {card(torch.cuda.get_device_name(gpu)).kind} "
    except UsageError:  # not in the catalogue
        kind = ""
    program = Path(sys.argv[0]) if sys.argv else Path()
    if program.suffix != ".py" or not program.is_file() or not is_own(str(program.resolve())):
        return "anydevice.plan(train, batch_arg=…) finds the largest batch that fits."
    found = BATCH_OPTION.search(program.read_text("utf-8", errors="replace"))
    option = f"--batch-arg={found[1]} " if found else ""
    finds = "finds the largest batch that fits" if found else "shows what holds the memory"
    return f"This {finds}:\n    anydevice plan {kind}{option}{shlex.join(sys.argv)}"
