"""torch.compile: prepared for a GPU that is not there, or the program as it is written."""

from collections.abc import Iterator
from functools import cache, wraps
from importlib import import_module
from typing import Any

import torch

from anydevice.notices import say_once
from anydevice.virtual.compiled import choice
from anydevice.virtual.compiled.names import imports_inductor

EARLY = {  # a module of Dynamo, its class, and the names of torch.cuda that the class keeps
    "torch._dynamo.device_interface": (
        "CudaInterface",
        {
            "exchange_device": "_exchange_device",
            "maybe_exchange_device": "_maybe_exchange_device",
            "Event": "Event",
            "Stream": "Stream",
        },
    ),
    "torch._dynamo.variables.ctx_manager": (
        "CUDADeviceVariable",
        {"_exchange_fn": "_exchange_device", "_maybe_exchange_fn": "_maybe_exchange_device"},
    ),
}


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """torch.compile, whose default backend would ask Triton for GPU code."""
    compile_for_gpu: Any = torch.compile

    @wraps(compile_for_gpu)
    def compile(model: Any = None, *, backend: Any = None, **options: Any) -> Any:
        backend = choice.backend_of(backend)
        if choice.is_op_by_op(backend):
            return compile_for_gpu(model, backend=backend, **options)
        reason = choice.why_not()  # asked for a program's own backend, too: it may call Inductor
        if reason and choice.is_inductors(backend):
            say_once(f"torch.compile runs with backend='eager' on virtual GPUs: {reason}.")
            backend = "eager"
            options = {key: options[key] for key in ("fullgraph", "dynamic") if key in options}
        return compile_for_gpu(model, backend=backend, **options)

    yield torch, "compile", compile


def prepare() -> None:
    """Prepares Inductor, which the program imports; torch.compile says why if that cannot be."""
    if not imports_inductor():
        choice.why_not()


def early(module: str) -> Iterator[tuple[Any, str, Any]]:
    """What a module of Dynamo took from torch.cuda: it may be imported before the GPUs come."""
    name, taken = EARLY[module]
    owner = getattr(import_module(module), name)
    for attribute, source in taken.items():
        value = getattr(torch.cuda, source)
        if attribute in vars(owner):
            yield owner, attribute, value if isinstance(value, type) else staticmethod(value)


def constants() -> None:
    """Dynamo takes a card's properties as a constant; it knows their type since its import."""
    properties = torch._C._CudaDeviceProperties
    import_module("torch._dynamo.utils").common_constant_types.add(properties)
    builder = import_module("torch._dynamo.variables.builder")
    builder.SourcelessBuilder._type_handlers = builder.SourcelessBuilder.make_type_handlers()
    builder.VariableBuilder._type_dispatch_impl.cache_clear()


@cache
def leave_out() -> None:
    """Dynamo does not trace what stands for torch._C here, as it does not trace torch._C."""
    import_module("torch._dynamo.trace_rules").add("anydevice.virtual")


def ask_again() -> None:
    """Whether Triton works is asked once and kept: with these GPUs it has another answer."""
    from torch.utils import _triton as asked

    for each in vars(asked).values():
        if clear := getattr(each, "cache_clear", None):
            clear()
