"""Holds a virtual GPU against the recording of a real card: equal texts are run, answers compared.

python -m tests.conformance.recording [tests/reference/h200.json.gz]
"""

import contextlib
import gzip
import hashlib
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anydevice.devices.catalogue import card
from tests.conformance import steps
from tests.conformance.crew import Worker, WorkerDiedError

REFERENCE = Path(__file__).parents[1] / "reference"
# The names that the cases of section `sync` use, beside those that the recording carries.
SYNC_SETUP = """
prm = [nn.Parameter(g.clone()) for _ in range(2)]
for p in prm: p.grad = torch.ones_like(p)
opt, adam, fused = torch.optim.SGD(prm, .1, momentum=.9), torch.optim.Adam(prm), torch.optim.Adam(prm, fused=True)
scaler = torch.amp.GradScaler('cuda')
def scaler_step():
    scaler.scale(g.sum()); scaler.step(opt); scaler.update()
opt.step(); adam.step(); fused.step(); scaler_step()
"""  # noqa: E501
Names = dict[str, Any]


def recorded(path: Path) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def kind(name: str) -> str:
    """The catalogue's name for a card, from the card's own: "NVIDIA H200" is h200."""
    return card(name).kind


def errors(names: Names, code: str, recorded: Any) -> Any:
    try:
        try:
            value = eval(code, names)
        except SyntaxError:
            exec(code, names)
            value = None
        return {"ok": plain(value)}
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error)}


def rng(names: Names, code: str, recorded: Any) -> Any:
    exec(code, names)
    state = names["torch"].cuda.get_rng_state()
    offset = int.from_bytes(bytes(state[8:16].tolist()), "little")
    return {**plain(names["r"]), "rng_offset_after": offset}


def memory(names: Names, code: str, recorded: Any) -> Any:
    """The trace of allocations that the card was given, with the statistics after each."""
    torch, live, after = names["torch"], {}, []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for slot, size in recorded["trace"]:
        if size:
            live[slot] = torch.empty(size, dtype=torch.uint8, device="cuda")
        else:
            del live[slot]
        stats = torch.cuda.memory_stats()
        keys = [k if k == "num_alloc_retries" else k + ".all.current" for k in recorded["columns"]]
        after.append([stats.get(key, 0) for key in keys])
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return recorded | {"after": after, "peaks": {"allocated": allocated, "reserved": reserved}}


def sync(names: Names, code: str, recorded: Any) -> Any:
    from anydevice.virtual.events import listening

    exec(SYNC_SETUP, names)
    seen = []
    with listening(seen.append), contextlib.suppress(Exception):
        exec(code, names)
    return {"synchronises": sum(event.kind == "synchronise" for event in seen)}


def ops(names: Names, code: str, recorded: Any) -> Any:
    """What a module, or an optimizer's second step, dispatches."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if op.namespace != "anydevice":  # what stands for C++ code of a CUDA build
                log.append(str(op))
            return op(*args, **kwargs or {})

    log: list[str] = []
    if optimizer := re.fullmatch(r"second step of OPT\['(\w+)'\] over three parameters", code):
        parameters = [torch.nn.Parameter(torch.ones(3, device="cuda")) for _ in range(3)]
        step = names["OPT"][optimizer[1]](parameters).step
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            log.clear()
            with Log():
                step()
        return {"forward": log}
    try:
        with Log():
            result = eval(code, names)
            forward = len(log)
            if result.requires_grad:
                result.float().sum().backward()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"forward": log[:forward], "backward": log[forward:]}


def plain(value: Any) -> Any:
    """As the recording writes a result down."""
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value)[:200]
    raw = value.detach().cpu().contiguous()
    flat = raw.flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    exact = flat.double() if flat.is_floating_point() else flat
    data = (raw if raw.dim() else raw[None]).view(torch.uint8).numpy().tobytes()
    return {
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "device": str(value.device),
        "first": exact[:12].tolist(),
        "last": exact[-4:].tolist(),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def same(section: str, there: Any, here: Any) -> bool:
    if section == "sync":  # how often is the card's own business, whether at all is not
        return "failed" not in here and bool(there["synchronises"]) == bool(here["synchronises"])
    return {k: v for k, v in there.items() if k != "context_lost"} == here


def nearly(there: Any, here: Any) -> bool:
    """Random numbers that are the card's but for rounding."""
    return bool(here) and all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6)
        for key in ("first", "last")
        for a, b in zip(flat(there.get(key, [])), flat(here.get(key, [])), strict=True)
    )


def flat(values: list[Any]) -> list[float]:
    return [x for v in values for x in (v if isinstance(v, list) else [v])]


SECTIONS: dict[str, Callable[[Names, str, Any], Any]] = {
    f.__name__: f for f in (errors, rng, memory, sync, ops)
}


def answer(path: Path, *, hollow: bool) -> None:
    """A worker's side: for each [section, case] a line of JSON with what happens here."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    import anydevice.virtual

    recording = recorded(path)
    gpu = kind(recording["environment"]["name"])
    anydevice.virtual.enable(gpus=1, gpu=gpu, hollow=hollow)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        section, case = json.loads(line)
        names: Names = {"torch": torch}
        exec(recording["prelude"], names)
        if section in ("errors", "sync"):
            exec(recording["errors_setup"], names)
        try:
            if section == "steps":
                found = steps.trained(names, case, gpu)
            else:
                found = SECTIONS[section](names, case, recording["sections"][section][case])
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        names.clear()
        print(json.dumps(found), file=answers, flush=True)


def compare(path: Path) -> None:
    recording = recorded(path)
    environment = recording["environment"]
    print(f"{path.name}: {environment['name']}, torch {environment['torch']}")
    for section in SECTIONS:
        pairs = asked(path, section, recording["sections"].get(section, {}))
        agreed = sum(same(section, there, here) for _, there, here in pairs)
        apart = [pair for pair in pairs if not same(section, *pair[1:])]
        near = sum(section == "rng" and nearly(*pair[1:]) for pair in apart)
        rounding = f", {near} more but for rounding" if near else ""
        print(f"{section}: {agreed} of {len(pairs)} agree{rounding}")
        show(apart)
    compare_steps(path, recording["sections"].get("steps", {}))


def compare_steps(path: Path, cases: dict[str, Any]) -> None:
    """Memory and time of whole training steps, which a hollow GPU foretells."""
    pairs = asked(path, "steps", cases)
    apart = [pair for pair in pairs if not steps.agrees(*pair[1:])]
    print(
        f"steps: {len(pairs) - len(apart)} of {len(pairs)} agree (whether they fit, and the peak "
        f"of allocated memory within {steps.NEAR:.0%}); relative errors:"
    )
    found = [difference for pair in pairs for difference in steps.differences(*pair)]
    print("\n".join(steps.summary(found)))
    show(apart)


def asked(path: Path, section: str, cases: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Each case with what the card did and what happens here."""
    words = ["--answer", str(path), *(["--hollow"] if section == "steps" else [])]
    worker = Worker(["-m", "tests.conformance.recording", *words])
    pairs = []
    for case, there in cases.items():
        try:
            here = worker.ask([section, case])
        except WorkerDiedError as end:
            worker.close()
            here = {"failed": str(end)}
        pairs.append((case, there, here))
    worker.close()
    return pairs


def show(apart: list[tuple[str, Any, Any]]) -> None:
    for case, there, here in apart:
        print(f"  {case}\n    card {str(there)[:200]}\n    here {str(here)[:200]}")


def main() -> None:
    if sys.argv[1:2] == ["--answer"]:
        answer(Path(sys.argv[2]), hollow="--hollow" in sys.argv)
        return
    paths = [Path(p) for p in sys.argv[1:]] or sorted(REFERENCE.glob("*.json.gz"))
    for path in paths:
        compare(path)
    if not paths:
        print(
            f"No recording of a real card in {REFERENCE}: nothing to hold the virtual GPU against."
        )


if __name__ == "__main__":
    main()
