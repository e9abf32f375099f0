"""What the ops of `op_db` refuse: with the error and the words that PyTorch has on CUDA."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.conformance.agree import DisagreementError, attempt
from tests.conformance.compare import difference
from tests.conformance.ops import Concern


def errors(op: OpInfo, dtype: torch.dtype, limit: int | None) -> Iterator[Callable[[], bool]]:
    """The database says what PyTorch raises on a real card; the samples are made on ours."""

    def same(wanted: Any) -> bool:
        sample = wanted.sample_input
        try:
            op(sample.input, *sample.args, **sample.kwargs)
            got = "no error"
        except Exception as error:
            if isinstance(error, wanted.error_type) and re.search(wanted.error_regex, str(error)):
                return True
            got = f"{type(error).__name__}: {error}"
        expected = f"{wanted.error_type.__name__}: {wanted.error_regex}"
        raise DisagreementError(f"expected {expected}, got {got}")

    def same_as_cpu(there: SampleInput, here: SampleInput) -> bool:
        run = {
            device: attempt(op, s.input, *s.args, **s.kwargs)
            for device, s in (("cpu", there), ("cuda", here))
        }
        if found := difference(run["cpu"], run["cuda"]):
            raise DisagreementError(found)
        return True

    on_cpu, on_gpu = (list(op.error_inputs(device)) for device in ("cpu", "cuda"))
    for i, wanted in enumerate(on_gpu[:limit]):
        if wanted.error_regex:
            yield lambda wanted=wanted: same(wanted)
        elif len(on_cpu) == len(on_gpu):  # without words, the CPU's word counts
            both = on_cpu[i].sample_input, wanted.sample_input
            yield lambda both=both: same_as_cpu(*both)


CHECKS: dict[str, tuple[Concern, Callable[..., Iterator[Callable[[], bool]]]]] = {
    "errors": (lambda op, d: d is torch.float32 and op.error_inputs_func is not None, errors),
}
