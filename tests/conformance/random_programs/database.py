"""Any op of PyTorch's database, on the samples that PyTorch tests it with."""

from contextlib import nullcontext
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.conformance.cases import known_differences
from tests.conformance.ops import UNWRITTEN, by_name, kept, on_cuda, runs_on_cuda
from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.layers import HALVES
from tests.conformance.random_programs.running import DTYPES, Running
from tests.conformance.random_programs.values import DEVICES, Either, Twin
from tests.conformance.references import REFERENCES
from tests.conformance.twins import twins

RANDOM = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "normal.in_place", "normal.number_mean", "uniform", "randn", "randn_like", "rand_like",
    "randint", "randint_like", "nn.functional.rrelu",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward",
}  # fmt: skip
ODD = {"to", "jiterator_4inputs_with_extra_args", "bmm.triton_optimized"}
# Without a gradient, the CPU has a kernel for it that makes a tensor; elsewhere it gives a view of
# what another op made. So autograd knows each result in another way, on a card as here.
# The others' matrices lie otherwise: cuSOLVER computes V of an SVD, LAPACK its transpose, and a
# card's eigenvectors come from the host.
OTHERWISE_ON_CPU = {"nn.functional.max_pool1d", "svd_lowrank", "pca_lowrank", "linalg.eig"}
SAMPLES = 6


@cache
def ops() -> list[OpInfo]:
    known = {name for entry in known_differences() for name in entry.names}
    left_out = UNWRITTEN | set(REFERENCES) | ODD | OTHERWISE_ON_CPU | known
    return [op for name, op in by_name().items() if name not in left_out]


def sampled(running: Running, choices: Choices) -> None:
    op = choices.among(ops())
    dtypes = [dtype for dtype in dict.fromkeys(DTYPES) if on_cuda(op, dtype)]
    if not dtypes or running.contexts:
        return
    dtype, device = choices.among(dtypes), choices.among(DEVICES[:2])
    grad = op.supports_autograd and dtype.is_floating_point and choices.once_in(3)
    given = filter(runs_on_cuda, op.sample_inputs("cpu", dtype, requires_grad=grad))
    sample = next(islice(given, choices.below(SAMPLES), None), None)
    if sample is not None:
        called(running, choices, op, kept(op, sample), dtype, device)


def called(
    running: Running, choices: Choices, op: OpInfo, sample: Any, dtype: torch.dtype, device: str
) -> None:
    """The op on the sample; a value of the program stands in for a tensor that is like it."""
    tree = (sample.input, sample.args, sample.kwargs)
    left, shape = tree_flatten(twins(tree, "cpu"))
    right = tree_leaves(twins(tree, device))
    given = [paired(running, choices, *pair, device) for pair in zip(left, right, strict=True)]
    nowhere = not any(isinstance(x, torch.Tensor | torch.device) for x in left)

    def function(where: str, *leaves: Any) -> Any:
        first, rest, named = tree_unflatten(leaves, shape)
        with torch.device(where) if nowhere else nullcontext():
            return op.op(first, *rest, **named)

    name = op.full_name
    compare = "random" if name in RANDOM else "close" if dtype in HALVES else "exact"
    running.apply(name, function, Either("cpu", device), *given, on=device, compare=compare)


def paired(running: Running, choices: Choices, cpu: Any, gpu: Any, device: str) -> Any:
    if not isinstance(cpu, torch.Tensor):
        return Either(cpu, gpu)
    fitting = [
        v for v in running.values
        if v.strided and v.device == device and v.shape == cpu.shape and v.dtype == cpu.dtype
        and v.floats and cpu.layout is torch.strided and v.dim
    ]  # fmt: skip
    if fitting and choices.once_in(2):
        return choices.among(fitting)
    where = str(gpu.device)
    if cpu.layout is torch.strided and not cpu.is_nested:
        return running.add(cpu, gpu, where)
    return Twin("sparse", cpu, gpu, where)


KINDS = {"sampled": (sampled, 10)}
