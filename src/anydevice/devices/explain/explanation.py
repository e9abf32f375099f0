"""Device errors explained: which of the user's own variables is where, and the line to change."""

import functools
import inspect
import re
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar, cast, overload

import torch

from anydevice.devices.absence import why_no_gpu
from anydevice.devices.explain.fix import explain_mismatch, explain_numpy
from anydevice.devices.explain.memory import OUT_OF_MEMORY, out_of_memory
from anydevice.devices.explain.mistakes import explain_mistake, is_mistake
from anydevice.devices.explain.scene import forget_locals, scenes

Function = TypeVar("Function", bound=Callable[..., Any])

_MISMATCH = re.compile(
    r"same device|is not on the expected device|on the same device as"
    r"|invalid gradient at index \d+ - expected device"
    r"|Input type \(.*\) and weight type \(.*\) should be the same|Placeholder storage has not been"
)
_NUMPY = re.compile(r"can't convert \S+ device type tensor to numpy")
# numpy.mean(tensor) calls tensor.mean with the arguments of an array's.
_NUMPY_CALL = re.compile(r"got an unexpected keyword argument '(axis|out|dtype|keepdims)'")
_LOADING = re.compile(r"Attempting to deserialize object on")
_ABSENT = re.compile(
    r"not compiled with \w+ enabled|Found no NVIDIA driver|driver on your system is too old"
    r"|No CUDA GPUs are available|is not linked with support for \w+ devices"
    r"|accelerator device when none is available|generator without ATen_cuda library"
    r"|invalid device ordinal|module 'torch._C' has no attribute '_cuda_"
)


class Explanation:
    """The context that `explain` gives; it decorates functions, coroutines and generators too."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            annotate(error)

    def __call__(self, function: Function) -> Function:
        """The function, with its device errors explained."""
        if inspect.iscoroutinefunction(function):
            return cast(Function, self._coroutine(function))
        if inspect.isgeneratorfunction(function):
            return cast(Function, self._generator(function))
        return cast(Function, self._function(function))

    def _function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def explained(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return explained

    def _coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def explained(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return explained

    def _generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def explained(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with self:
                return (yield from function(*args, **kwargs))

        return explained


@overload
def explain(function: None = None) -> Explanation: ...
@overload
def explain(function: BaseException) -> str: ...
@overload
def explain(function: Function) -> Function: ...
def explain(
    function: Function | BaseException | None = None,
) -> Explanation | Function | str:
    """Explain device errors: a note names your variables, their devices and the line to change.

    The error stays the same. The note is in its traceback and in `error.__notes__`, not in
    `str(error)`: for an error that you catch, `explain(error)` gives its text with the note.

    Args:
        function: A function, coroutine or generator to decorate; an error that was caught; None
            for a `with` block.

    Returns:
        A context manager, the decorated function, or the error's text with the explanation.

    Example:
        >>> with ad.explain():
        ...     network(x)  # doctest: +SKIP
        >>> try:
        ...     torch.ones(1, device="gpu")
        ... except RuntimeError as error:
        ...     print(ad.explain(error).splitlines()[-1])
          Fix: device = anydevice.try_gpu(), a GPU where there is one and the CPU elsewhere
    """
    if isinstance(function, BaseException):
        annotate(function)
        return "\n".join([str(function), *getattr(function, "__notes__", ())])
    return Explanation() if function is None else Explanation()(function)


def annotate(error: BaseException | None) -> None:
    """Add the explanation to a device error, and to those it came from, as a note, once."""
    while isinstance(error, Exception):
        if not any(note.startswith("anydevice: ") for note in getattr(error, "__notes__", ())):
            try:
                explanation = _explanation(error)
            except Exception:  # an explanation must never hide the error it is about
                explanation = None
            if explanation:
                error.add_note(f"anydevice: {explanation}")
        error = error.__cause__ or error.__context__


def _explanation(error: Exception) -> str | None:
    text = str(error)
    if _LOADING.search(text):
        return (
            f"the file holds tensors of a device that is not here ({_what_is_here()}).\n"
            "  Fix: torch.load(…, map_location=anydevice.try_gpu())"
        )
    if _ABSENT.search(text):
        return (
            f"{_what_is_here()}.\n"
            "  Fix: device = anydevice.try_gpu(), a GPU where there is one and the CPU elsewhere"
        )
    is_mismatch = isinstance(error, RuntimeError | ValueError) and _MISMATCH.search(text)
    is_numpy = _NUMPY.search(text) or (isinstance(error, TypeError) and _NUMPY_CALL.search(text))
    is_memory = OUT_OF_MEMORY.search(text)
    if not (is_mismatch or is_numpy or is_memory or is_mistake(text)):
        return None
    traceback = scenes(error.__traceback__)
    try:
        if is_memory:
            return out_of_memory(is_memory, traceback)
        found = explain_mismatch(traceback, text) if is_mismatch else None
        found = explain_numpy(traceback) if is_numpy else found
        return found or explain_mistake(traceback, text)
    finally:
        forget_locals(traceback[-1].frame)  # of all frames, this one keeps running


def _what_is_here() -> str:
    absence = why_no_gpu()
    if absence:
        return f"there is no GPU, because {absence.reason}. {absence.remedy.rstrip('.')}"
    return f"GPUs here: {torch.accelerator.device_count()}, counted from 0"
