"""compile_fx, which begins each compilation, with a configuration of virtual GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from anydevice.virtual.compiled.starting import collecting_seldom

_inside = threading.local()


def configured(compile_fx: Callable[..., Any], changes: dict[str, Any], **more: Any) -> Any:
    """compile_fx with these changes; it calls itself by its name once it has applied others."""

    def compiled(model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        if getattr(_inside, "on", False):
            return compile_fx(model, inputs, *rest, **options)
        given = options.pop("config_patches", None) or {}
        _inside.on = True
        try:
            patches = {**given, **changes}
            with collecting_seldom():
                return compile_fx(model, inputs, *rest, config_patches=patches, **more, **options)
        finally:
            _inside.on = False

    return compiled
