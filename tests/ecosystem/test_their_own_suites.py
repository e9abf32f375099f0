"""The tests that accelerate and pytorch-ignite ship with their sources, for GPUs among others."""

import os

import pytest

from tests.ecosystem.running import ROOT, on_gpus

SOURCES = ROOT / "build" / "ecosystem" / "sources"

ACCELERATE = [
    *("accelerator", "hooks", "modeling_utils", "utils", "offload", "optimizer", "scheduler"),
    *("kwargs_handlers", "data_loader", "grad_sync", "big_modeling"),
]
LEFT_OUT = [
    "test_accelerator.py::AcceleratorTester::test_setting_cpu_affinity",  # asks NVML, the driver's
    "test_big_modeling.py::BigModelingTester::test_dispatch_model_tied_weights_memory",  # 16 GB of
    # the host's memory, as has test_dispatch_model_tied_weights_memory_with_nested_offload_cpu
]
IGNITE = ["engine", "distributed/comp_models", "distributed/utils", "distributed/test_auto.py"]


def passes(package: str, *words: str) -> None:
    """Runs a package's own tests in the folder of its sources."""
    (folder,) = SOURCES.glob(f"{package}-*/") if SOURCES.exists() else [None]
    if folder is None:
        pytest.skip("make test-ecosystem brings the sources")
    plain = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    printed = on_gpus("-m", "pytest", *plain, *words, gpus=2, folder=folder)
    assert " passed" in printed.splitlines()[-1], printed


def test_accelerate_passes_its_own_tests() -> None:
    files = [f"tests/test_{name}.py" for name in ACCELERATE]
    without = [word for name in LEFT_OUT for word in ("--deselect", f"tests/{name}")]
    passes("accelerate", *files, *without)


def test_ignite_passes_its_own_tests_with_nccl_too() -> None:
    passes("pytorch_ignite", "-m", "not tpu", *[f"tests/ignite/{part}" for part in IGNITE])
