"""Why a program could not be planned: one sentence, with the program's line."""

from __future__ import annotations

import errno
import re
import traceback
from pathlib import Path

from anydevice.errors import UsageError
from anydevice.frames import is_own, line_of
from anydevice.plan.cluster.unsupported import SHARED
from anydevice.plan.hollow.steps import Steps

# Packages that contain code for GPUs.
FOR_GPUS = (
    *("triton", "flash_attn", "flash_attn_interface", "xformers", "apex", "cupy", "pycuda"),
    *("bitsandbytes", "transformer_engine", "mamba_ssm", "causal_conv1d", "deepspeed"),
)
COMPILERS = ("cpp_extension.py", "/triton/", "cuda/_utils.py", "jiterator")
CUDA_SOURCES = ("a compiled CUDA kernel needs", "CUDA_HOME", "needs NVIDIA's compiler")

HERE = tuple(str(Path(__file__).parents[2] / room) for room in ("plan", "check"))
NOT_THE_PROGRAMS = (*HERE, "<frozen runpy>", "torch/_compile.py", "torch/_dynamo/", "torch/_ops.py")


class CannotPlanError(UsageError):
    """The program cannot be planned; `details` is the program's traceback, if it failed."""

    def __init__(self, sentence: str, details: str = "", ended_at: str = "") -> None:
        super().__init__(sentence)
        self.details = details
        self.ended_at = ended_at  # the line where it exited, with an exit code

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (str(self), self.details, self.ended_at)


class DoesNotFitError(Exception):
    """The program needs more memory than its GPUs have."""


def explained(error: BaseException, name: str) -> CannotPlanError:
    """What went wrong in the program of this name, before its steps were done."""
    where = line_of(error) or name
    if isinstance(error, UsageError):
        return CannotPlanError(str(error))
    if what := _needs_gpu_code(error):
        return CannotPlanError(
            f"expected a program that uses PyTorch's own ops only, got {where}, which needs code "
            f"for a GPU ({what}): use PyTorch's ops where there is no GPU."
        )
    if "SymmetricMemory" in str(error) or "symm_mem::" in str(error):
        return CannotPlanError(SHARED.format(where))
    if isinstance(error, NotImplementedError) and "has shapes but no values" in str(error):
        return CannotPlanError(
            "expected a program whose sizes do not depend on values, got "
            f"{where}: {_first_line(error)}"
        )
    if isinstance(error, SystemExit):
        return CannotPlanError(
            f"expected a program that steps an optimizer, got {where}, which ended with exit code "
            f"{error.code}.",
            ended_at=where,
        )
    text = f"{type(error).__name__}: {_first_line(error)}".rstrip(": ")
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        text += ". Under plan, files that a program writes are kept in memory, and it was used up."
    return CannotPlanError(
        f"expected a program that runs, got {where}, which failed with {text}",
        own_traceback(error),
    )


def failed_later(error: BaseException, name: str, steps: Steps) -> str:
    """A note for a program that failed after complete steps."""
    where = line_of(error) or name
    count = f"{len(steps.ends)} {steps.unit}{'s' * (len(steps.ends) > 1)}"
    if isinstance(error, SystemExit):
        how = f"ended at {where} with exit code {error.code}"
    else:
        how = f"failed at {where}, after {count}, with {type(error).__name__}: {_first_line(error)}"
    return f"The program {how}. The answer is for what it did until then."


def without_steps(name: str, last_line: str, backward: bool) -> CannotPlanError:
    """The error for a program that ended before an optimizer's step."""
    if not last_line:
        got = f"{name}, which ended without any work on a GPU"
    elif backward:
        got = f"{name}, which computes gradients, last at {last_line}, and never steps"
    else:
        got = f"{name}, which last used the GPU at {last_line} and never steps"
    return CannotPlanError(
        f"expected a program that trains or runs a network on a GPU, got {got}: a plan predicts "
        "what a step takes."
    )


def unknown_batch_argument(option: str, batch: int, end: CannotPlanError) -> CannotPlanError:
    """The error for a program that exits when its batch size is set with this option."""
    return CannotPlanError(
        f"expected the name of the batch size, got {option!r}: with {batch} for it, the program "
        f"exited at {end.ended_at}. Is this option (--batch-arg, batch_arg) known to the program?",
        end.details,
    )


def on_the_host(line: str) -> CannotPlanError:
    """The error for a program whose optimizer's parameters are not on a GPU."""
    return CannotPlanError(
        f"expected a program that trains on the GPU, got {line}, which steps an optimizer of "
        "parameters on the CPU: move the network to 'cuda'."
    )


def all_on_the_host(name: str) -> CannotPlanError:
    """The error for a program that has a GPU and puts nothing there."""
    return CannotPlanError(
        f"expected a program that trains or runs a network on a GPU, got {name}, which does all "
        "its work on the CPU: move the network and its inputs to 'cuda'."
    )


def _needs_gpu_code(error: BaseException) -> str:
    if isinstance(error, ImportError):
        package = (error.name or "").partition(".")[0]
        return package if package in FOR_GPUS or package.endswith("_cuda") else ""
    if found := re.match(r"Could not run '(?!aten::)([\w:.]+)' with", str(error)):
        return found[1]
    if any(sign in str(error) for sign in CUDA_SOURCES):
        return "a custom CUDA kernel"
    if type(error).__module__.partition(".")[0] == "triton":  # it compiled, and says what is wrong
        return ""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    others = [file for file in files[1:] if not is_own(file)]
    if any(compiler in file for file in others for compiler in COMPILERS):
        return "a custom CUDA kernel"
    return ""


def own_traceback(error: BaseException) -> str:
    """The traceback without the frames of anydevice, which called the program."""
    whole = traceback.TracebackException.from_exception(error)
    frames = [f for f in whole.stack if not any(part in f.filename for part in NOT_THE_PROGRAMS)]
    whole.stack = traceback.StackSummary.from_list(frames)
    return "".join(whole.format())


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
