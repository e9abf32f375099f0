"""torch.compile: there is no GPU to generate code for, so the program runs as written."""

from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch

from anydevice.notices import say_once


def attributes() -> Iterator[tuple[Any, str, Any]]:
    """torch.compile, whose default backend would ask Triton for GPU code."""
    compile_for_gpu: Any = torch.compile

    @wraps(compile_for_gpu)
    def compile(model: Any = None, *, backend: Any = "inductor", **options: Any) -> Any:
        if backend == "inductor":
            say_once("torch.compile makes no code for virtual GPUs: it runs with backend='eager'.")
            backend = "eager"
            options = {key: options[key] for key in ("fullgraph", "dynamic") if key in options}
        return compile_for_gpu(model, backend=backend, **options)

    yield torch, "compile", compile
