"""compile_fx, which begins each compilation, with a configuration of virtual GPUs."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

from anydevice.virtual.compiled.names import inductor_names
from anydevice.virtual.compiled.starting import collecting_seldom

_inside = threading.local()


def configured(compile_fx: Callable[..., Any], changes: dict[str, Any]) -> Any:
    """compile_fx with these changes; it calls itself by its name once it has applied others."""
    bind = inspect.signature(compile_fx).bind

    def compiled(*arguments: Any, **options: Any) -> Any:
        if getattr(_inside, "on", False):
            return compile_fx(*arguments, **options)
        given = bind(*arguments, **options).arguments
        given["config_patches"] = {**(given.get("config_patches") or {}), **changes}
        _inside.on = True
        try:
            with collecting_seldom():
                return compile_fx(**given)
        finally:
            _inside.on = False

    return compiled


def with_changes(compile_inner: Callable[..., Any], changes: dict[str, Any]) -> Callable[..., Any]:
    """What compiles a graph of ops, with these changes: a backend may call it by itself."""

    def compiled(*arguments: Any, **options: Any) -> Any:
        with inductor_names().config.patch(changes):
            return compile_inner(*arguments, **options)

    return compiled
