"""What a GPU that is not there cannot do, each said in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

REASONS = {
    "_cuda_customAllocator": (
        "an allocator of CUDA memory needs a real GPU's memory: virtual GPUs keep PyTorch's own."
    ),
    "_cuda_changeCurrentAllocator": (
        "an allocator of CUDA memory needs a real GPU's memory: virtual GPUs keep PyTorch's own."
    ),
    "_StaticCudaLauncher": "a compiled CUDA kernel needs a real GPU to be launched on.",
    "_cuda_getCheckpointState": (
        "the state of a graph's memory pool belongs to a real CUDA graph: on virtual GPUs "
        "torch.compile's graphs do without one."
    ),
}
REASONS["_cuda_setCheckpointPoolState"] = REASONS["_cuda_getCheckpointState"]
REASONS["_construct_CUDA_Tensor_From_Storage_And_Metadata"] = REASONS["_cuda_getCheckpointState"]
REASONS["_free_And_Remove_DeleterFn"] = REASONS["_cuda_getCheckpointState"]
REASONS["_has_Standard_Deleter"] = REASONS["_cuda_getCheckpointState"]
REASONS["_tensors_data_ptrs_at_indices_equal"] = REASONS["_cuda_getCheckpointState"]

DIRECT_STORAGE = (
    "GPUDirect Storage reads files straight into a real GPU's memory: use torch.load() or "
    "numpy.fromfile() on a virtual GPU."
)
for _name in ("register", "deregister"):
    REASONS |= {f"_gds_{_name}_buffer": DIRECT_STORAGE, f"_gds_{_name}_handle": DIRECT_STORAGE}
REASONS["_gds_register_handle"] = f"cuFileHandleRegister failed: {DIRECT_STORAGE}"
REASONS |= {"_gds_load_storage": DIRECT_STORAGE, "_gds_save_storage": DIRECT_STORAGE}


class GreenContext:
    """`torch._C._CUDAGreenContext`."""

    @staticmethod
    def create(*_: object, **__: object) -> NoReturn:
        """Refuses."""
        raise NotImplementedError(
            "a green context divides a real GPU's multiprocessors, and a virtual GPU has none to "
            "divide: run the work on a stream."
        )

    max_workqueue_concurrency = create


class AllocatorState:
    """`torch._C._cuda_CUDAAllocator_AllocatorState`: a type to import, of which there are none."""


def names() -> dict[str, Any]:
    """What torch._C calls them."""
    return {name: _refusing(reason) for name, reason in REASONS.items()} | {
        "_CUDAGreenContext": GreenContext,
        "_cuda_CUDAAllocator_AllocatorState": AllocatorState,
    }


def attributes() -> Any:
    """torch.cuda.green_contexts looked for its base when it was imported."""
    import torch.cuda.green_contexts as module

    if hasattr(module, "_get_driver_version"):  # torch 2.15, in Python: each use begins with this
        yield module, "_get_driver_version", GreenContext.create
    else:
        yield module, "_GreenContext", GreenContext
        yield module, "SUPPORTED", True


def _refusing(reason: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(reason)

    return refuse
