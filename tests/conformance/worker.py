"""One process with a virtual GPU that judges case after case: a line of JSON in, a line out."""

import faulthandler
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from tests.conformance.cases import Case, Outcome

Thunks = Iterator[Callable[[], bool]]


def start() -> None:
    """The virtual GPU must be there before the databases are read: they ask what it can do."""
    warnings.simplefilter("ignore")
    import torch

    import anydevice.virtual

    anydevice.virtual.enable(gpus=2, gpu="h100")
    torch.set_num_threads(1)


def checks() -> dict[str, tuple[Callable[[], Any], Callable[..., Thunks]]]:
    """For each check, what lists its (name, dtype) pairs and what runs one of them."""
    import torch
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    # For each sample they look for a unittest in the whole stack, and keep the stack for an XPU
    # that may be used later: most of the time. Neither is there.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    torch.xpu.random._lazy_call = lambda *_, **__: None

    from tests.conformance import autocast, errors, gradients, modules, ops, optimizers, programs
    from tests.conformance.random_programs import judging

    def on_ops(check: Callable[..., Thunks]) -> Callable[..., Thunks]:
        return lambda name, dtype, limit: check(ops.by_name()[name], getattr(torch, dtype), limit)

    of_ops = ops.CHECKS | gradients.CHECKS | errors.CHECKS
    found: dict[str, Any] = {
        name: (partial(ops.cases, concerns), on_ops(check))
        for name, (concerns, check) in of_ops.items()
    }
    found["module"] = (modules.cases, modules.module)
    found["optimizer"] = (optimizers.cases, optimizers.optimizer)
    found["autocast"] = (autocast.cases, autocast.autocast)
    found["program"] = (programs.cases, programs.program)
    found["random"] = (judging.batches, judging.batch)
    return found


def judge(case: Case, thunks: Callable[..., Thunks], limit: int | None) -> Outcome:
    begun, tried, computed, failures = time.perf_counter(), 0, 0, []
    try:
        for thunk in thunks(case.name, case.dtype, limit):
            tried += 1
            try:
                computed += thunk()
            except Exception as error:
                failures.append(f"sample {tried - 1}: {described(error)}")
    except Exception as error:
        failures.append(f"no samples: {described(error)}")
    return Outcome(case, tried, computed, tuple(failures), time.perf_counter() - begun)


def described(error: Exception) -> str:
    from tests.conformance.agree import DisagreementError

    text = " ".join(str(error).split("\nTo execute this test")[0].split())[:600]
    return text if isinstance(error, DisagreementError) else f"{type(error).__name__}: {text}"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    faulthandler.enable()
    os.dup2(2, 1)  # what the ops print must not mix with the answers
    start()
    known = checks()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "list":
            answer: Any = [
                [check, *pair] for check, (pairs, _) in known.items() for pair in pairs()
            ]
        else:
            case = Case(*asked["case"])
            answer = asdict(judge(case, known[case.check][1], asked["limit"]))
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
