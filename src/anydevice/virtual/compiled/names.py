"""The private names of Triton, Inductor and Dynamo that a virtual GPU touches, and nothing else.

They move from one version to the next. Each is looked up here, when it is needed; where one is
missing, MissingNameError says which, and code that asked says what it does without.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from anydevice.virtual.compiled import starting

# Triton: its driver, what launches a kernel, and its interpreter.
TRITON = {
    "driver": "triton.runtime.driver:driver",
    "JITFunction": "triton.runtime.jit:JITFunction",
    "Autotuner": "triton.runtime.autotuner:Autotuner",
    "bench": "triton.runtime.autotuner:Autotuner._bench",
    "Compiled": "triton.compiler.compiler:CompiledKernel",
    "handles": "triton.compiler.compiler:CompiledKernel._init_handles",
    "CompilationError": "triton.compiler.errors:CompilationError",
    "core": "triton.language.core:",
    "OutOfResources": "triton.runtime.errors:OutOfResources",
    "make_backend": "triton.compiler.compiler:make_backend",
    "make_ir": "triton.compiler.compiler:ASTSource.make_ir",
    "Target": "triton.backends.compiler:GPUTarget",
    "Options": "triton.backends.nvidia.compiler:CUDAOptions",
    "Descriptor": "triton.tools.tensor_descriptor:TensorDescriptor",
    "compiler": "triton.compiler.compiler:",
    "most_shared": "triton.compiler.compiler:max_shared_mem",
    "cache": "triton.runtime.cache:",
    "key": "triton.runtime.cache:triton_key",
}
INTERPRETER = {
    "module": "triton.runtime.interpreter:",
    "native": "triton.runtime.interpreter:_interpreter",
    "Builder": "triton.runtime.interpreter:InterpreterBuilder",
    "Handle": "triton.runtime.interpreter:TensorHandle",
    "Executor": "triton.runtime.interpreter:GridExecutor",
    "Reduce": "triton.runtime.interpreter:ReduceOps",
    "Scan": "triton.runtime.interpreter:ScanOps",
    "builder": "triton.runtime.interpreter:interpreter_builder",
    "semantic": "triton.runtime.interpreter:interpreter_semantic",
    "patched": "triton.runtime.interpreter:_patch_lang",
    "converted": "triton.runtime.interpreter:_implicit_cvt",
    "dtype_of": "triton.runtime.interpreter:_get_np_dtype",
}


INDUCTOR = {
    "compile_fx": "torch._inductor.compile_fx:compile_fx",
    "compile_inner": "torch._inductor.compile_fx:_compile_fx_inner",
    "compiling": "torch._inductor.compile_fx:",
    "trees": "torch._inductor.cudagraph_trees:",
    "forget_trees": "torch._inductor.cudagraph_trees:reset_cudagraph_trees",
    "manager": "torch._inductor.cudagraph_trees:get_manager",
    "Manager": "torch._inductor.cudagraph_trees:CUDAGraphTreeManager",
    "Warmup": "torch._inductor.cudagraph_trees:CUDAWarmupNode",
    "Recorded": "torch._inductor.cudagraph_trees:CUDAGraphNode",
    "overwritten": "torch._inductor.cudagraph_trees:CUDAGraphTreeManager.format_dealloc_msg",
    "graphs": "torch._inductor.cudagraph_utils:",
    "incompatible": "torch._inductor.utils:get_first_incompatible_cudagraph_node",
    "cudagraphify": "torch._inductor.compile_fx:cudagraphify",
    "config": "torch._inductor.config:",
    "AsyncCompile": "torch._inductor.async_compile:AsyncCompile",
    "launch_triton": "torch._inductor.async_compile:AsyncCompile.triton",
    "CompiledGraph": "torch._inductor.output_code:CompiledFxGraph",
    "Box": "torch._inductor.utils:BoxedBool",
    "compiler": "torch._inductor.cpp_builder:get_cpp_compiler",
    "wrap": "torch._higher_order_ops.wrap:",
    "functorch": "torch._functorch.config:",
    "guards": "torch._C._dynamo.guards:",
    "Folder": "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder",
    "deduced": "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder._deduce_value",
    "codes": "torch._inductor.codecache:",
    "torch_key": "torch._inductor.codecache:torch_key",
    "triton_compat": "torch._inductor.runtime.triton_compat:",
    "triton_key": "torch._inductor.runtime.triton_compat:triton_key",
    "decompositions": "torch._inductor.decomposition:decompositions",
    "modes": "torch._inductor:list_mode_options",
    "force_stride_order": "torch._inductor.inductor_prims:force_stride_order",
}
# AOTAutograd: where it compiles the graphs of the forward and of the backward pass.
AHEAD = {
    "stages": "torch._functorch._aot_autograd.graph_compile:",
    "compile_both": "torch._functorch._aot_autograd.graph_compile:aot_stage2_autograd",
}
# Dynamo: what it says of graph breaks and of guards that fail.
DYNAMO = {
    "counters": "torch._dynamo.utils:counters",
    "Translator": "torch._dynamo.symbolic_convert:InstructionTranslatorBase",
    "log_graph_break": "torch._dynamo.symbolic_convert:InstructionTranslatorBase.log_graph_break",
    "frames": "torch._dynamo.convert_frame:",
    "originals": "torch._dynamo.convert_frame:orig_code_map",
    "recompilation_reasons": (
        "torch._dynamo.convert_frame:get_and_maybe_log_recompilation_reasons"
    ),
}
# What of Inductor's configuration is changed for virtual GPUs.
CONFIGURATION = {
    "compile_threads": 1,  # no processes that compile: nothing is compiled for a card
    "profile_bandwidth": True,  # it writes its count of each kernel's bytes into the kernel
    "autotune_local_cache": False,
    "bundle_triton_into_fx_graph_cache": False,
    "shape_padding": False,  # decided by a benchmark on a card
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "triton.cudagraph_trees": True,
}

# The same where values are computed: random numbers stay those of the card's generator.
WITH_VALUES = {
    "compile_threads": 1,
    "fallback_random": True,
    "shape_padding": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "cpp_wrapper": False,
    "freezing": False,
    "triton.cudagraph_trees": True,
}


class MissingNameError(Exception):
    """This version has no such name."""


@cache
def triton_names() -> Any:
    """Triton's, as attributes; MissingNameError if one is missing."""
    return _looked_up(TRITON)


@cache
def interpreter_names() -> Any:
    """Those of Triton's interpreter."""
    return _looked_up(INTERPRETER)


@cache
def inductor_names() -> Any:
    """Inductor's."""
    _being_looked_up.append("Inductor")
    try:
        with starting.importing():
            return _looked_up(INDUCTOR)
    finally:
        _being_looked_up.pop()


_being_looked_up: list[str] = []


def imports_inductor() -> bool:
    """Whether Inductor is imported for its names just now, and not by the program."""
    return bool(_being_looked_up)


@cache
def ahead_names() -> Any:
    """AOTAutograd's."""
    return _looked_up(AHEAD)


@cache
def dynamo_names() -> Any:
    """Dynamo's."""
    return _looked_up(DYNAMO)


def configuration(*, with_values: bool = False) -> dict[str, Any]:
    """What is changed, as far as this Inductor has it."""
    known = inductor_names().config._config
    wanted = WITH_VALUES if with_values else CONFIGURATION
    return {name: value for name, value in wanted.items() if name in known}


def _looked_up(names: dict[str, str]) -> SimpleNamespace:
    return SimpleNamespace(**{short: _found(place) for short, place in names.items()})


def _found(place: str) -> Any:
    module, _, path = place.partition(":")
    try:
        found: Any = import_module(module)
        for name in filter(None, path.split(".")):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        package = import_module(module.partition(".")[0])
        version = getattr(package, "__version__", "")
        what = f"{module}.{path}".rstrip(".")
        raise MissingNameError(f"{package.__name__} {version} has no {what}") from error
    return found
