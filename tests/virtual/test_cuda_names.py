"""Every public name of torch.cuda and its neighbours does what it says, or says why it cannot."""

import contextlib
import importlib
import inspect

import pytest
import torch

from anydevice import virtual

MODULES = (
    "torch.cuda",
    "torch.cuda.amp",
    "torch.cuda.comm",
    "torch.cuda.gds",
    "torch.cuda.graphs",
    "torch.cuda.green_contexts",
    "torch.cuda.jiterator",
    "torch.cuda.memory",
    "torch.cuda.nccl",
    "torch.cuda.nvtx",
    "torch.cuda.profiler",
    "torch.cuda.random",
    "torch.cuda.sparse",
    "torch.cuda.streams",
    "torch.cuda.tunable",
    "torch.accelerator",
    "torch.backends.cuda",
    "torch.backends.cudnn",
    "torch.backends.cusparselt",
)


@pytest.fixture(autouse=True)
def machine():
    virtual.enable()


def names_of(module):
    """What it lists in __all__, or defines itself; none that warns of being deprecated."""
    listed = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(listed)


def without_arguments(value):
    if not callable(value):
        return False
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in variadic for p in parameters)


LEFT_OUT = {
    "torch.cuda.memory.change_current_allocator",
    "torch.cuda.tunable.tune_gemm_in_file",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there_and_those_without_arguments_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(module)
    wrong = {}
    for name in names_of(module):
        try:
            value = getattr(module, name)
            if without_arguments(value) and f"{module.__name__}.{name}" not in LEFT_OUT:
                result = value()
                if hasattr(result, "__enter__") and not isinstance(result, torch.Stream):
                    with contextlib.suppress(RuntimeError), result:
                        pass
        except NotImplementedError as refused:
            if not str(refused).endswith("."):  # a sentence does
                wrong[name] = refused
        except RuntimeError as error:
            if "not compiled with CUDA" in str(error) or "dummy" in str(error):
                wrong[name] = error
        except Exception as error:
            wrong[name] = error
    assert not wrong


def test_dynamo_knows_every_name():
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    assert get_torch_obj_rule_map()


# What a CUDA build's torch._C has and a CPU build's lacks, by torch 2.13's own list of its names.
PREFIXES = (
    "_cuda_", "_nccl_", "_gds_", "_graph_pool", "_scatter", "_gather", "_broadcast", "_has_",
)  # fmt: skip
MISSPELLED = {"_cuda_tunableop_get_rotation_buffer_size"}  # in that list: it is "rotating"


def test_every_name_that_torch_declares_for_cuda_is_there():
    import re
    from pathlib import Path

    declared = Path(torch.__file__).with_name("_C").joinpath("__init__.pyi").read_text("utf-8")
    names = set(re.findall(r"^def (\w+)\(", declared, re.MULTILINE))
    wanted = {name for name in names if name.startswith(PREFIXES)} - MISSPELLED
    assert len(wanted) > 60
    assert sorted(name for name in wanted if not hasattr(torch._C, name)) == []
