"""A torch that anydevice was not written for: what does not match is left out, the rest works."""

import subprocess
import sys

import pytest

from anydevice.virtual import versions

from ..forked import python
from .own_process import run

# Each is another op than the kernel of ours was written for.
AN_ARGUMENT_MORE = (
    "aten::native_dropout(Tensor input, float p, bool? train, int more=0) -> (Tensor, Tensor)"
)
ONE_FEWER = "aten::abs() -> Tensor"
ANOTHER_TYPE = (
    "aten::uniform_(Tensor(a!) self, float from=0, Tensor? to=None, *, "
    "Generator? generator=None) -> Tensor(a!)"
)
ANOTHER_NAME = (
    "aten::_flash_attention_forward(Tensor q) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
ONLY_ON_GPUS = "aten::_cudnn_rnn_flatten_weight(Tensor[] weight_arr) -> Tensor"
# The common kernel takes these without boxes where PyTorch's C++ type is that of the schema.
WITHOUT_BOXES = [
    "aten::neg(Tensor self, Tensor other) -> Tensor",
    "aten::exp(Tensor self, Scalar more) -> Tensor",
    "aten::mul_.Tensor(Tensor(a!) self, Tensor other, Scalar more) -> Tensor(a!)",
]
CHANGED = [AN_ARGUMENT_MORE, ONE_FEWER, ANOTHER_TYPE, ANOTHER_NAME, ONLY_ON_GPUS]

WITH_CHANGED_SCHEMAS = f"""
import anydevice as ad
from anydevice.virtual import core, machine
core.library()
usual = [torch.ops.anydevice.pretend_schema(schema) for schema in {CHANGED!r}]
"""
LEFT_OUT = """[line for line in machine.left_out() if "this torch has no such op" not in line]"""


def test_an_op_that_has_changed_is_left_out_and_the_others_work():
    left_out, numbers, boxed, trained, refused = run(f"""
{WITH_CHANGED_SCHEMAS}
usual = [torch.ops.anydevice.pretend_schema(schema) for schema in {WITHOUT_BOXES!r}]
with ad.virtual_gpus():
    left_out = {LEFT_OUT}
    x = torch.full((100,), -1.0, device="cuda")
    kept = torch.nn.functional.dropout(x, 0.5)  # the CPU has these three
    drawn = torch.empty(100, device="cuda").uniform_(2, 3)
    numbers = [x.abs().sum().item(), sorted({{*kept.tolist()}}), 2 <= drawn.min().item() <= 3]
    boxed = [(-x).sum().item(), x.exp().log().sum().item(), x.clone().mul_(3 * x).sum().item()]
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).cuda()
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.randn(4, 8, device="cuda")).square().mean().backward()
    optimizer.step()
    trained = all(p.isfinite().all().item() for p in network.parameters())
    lstm = torch.nn.LSTM(4, 4)
    try:
        lstm.cuda()
        refused = "nothing"
    except NotImplementedError as error:
        refused = str(error)
print(json.dumps([left_out, numbers, boxed, trained, refused]))
""")
    named = [line.partition(": ")[0] for line in left_out]
    assert sorted(named) == sorted(schema.partition("(")[0] for schema in CHANGED)
    assert numbers == [100, [-2, 0], True]
    assert boxed == [100, -100, 300]
    assert trained
    assert "aten::_cudnn_rnn_flatten_weight is not available on a virtual GPU" in refused


def test_hollow_gpus_leave_the_same_out_and_work():
    left_out, peak = run(f"""
{WITH_CHANGED_SCHEMAS}
with ad.virtual_gpus(hollow=True):
    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda()
    network(torch.randn(4, 8, device="cuda")).abs().mean().backward()
    print(json.dumps([len({LEFT_OUT}), torch.cuda.max_memory_allocated()]))
""")
    assert left_out == len(CHANGED)
    assert peak > 0


def test_all_that_this_torch_has_matches():
    assert (
        run(f"""
import anydevice as ad
from anydevice.virtual import machine
found = []
for hollow in (False, True):
    with ad.virtual_gpus(hollow=hollow):
        found += {LEFT_OUT}
print(json.dumps(found))
""")
        == []
    )


def test_a_name_that_this_torch_lacks_is_left_out_and_the_others_work():
    left_out, trained, after = run(f"""
import torch.autograd.profiler
import anydevice as ad
from anydevice.virtual import machine
del torch.autograd.profiler.profile, torch._C._to_dlpack
with ad.virtual_gpus(2, "t4"):
    left_out = {LEFT_OUT}
    x = torch.ones(3, device="cuda:1", requires_grad=True)
    (x * 2).sum().backward()
    trained = x.grad.tolist(), torch.cuda.get_device_name()
print(json.dumps([left_out, trained, torch.cuda.is_available()]))
""")
    assert [line.partition(":")[0] for line in left_out] == ["profiling", "sharing"]
    assert trained == [[2, 2, 2], "Tesla T4"]
    assert after is False


STEPS = [
    "ops.kept_op_list",
    "core.library",
    "core.start_afresh",
    "surface.show_names",
    "surface.show_attributes",
    "surface.devices.names",
    "surface.defaults.remember",
    "surface.devices.attributes",
    "surface.sharing.send_events",
    "surface.hide",
    "core.disable",
]


@pytest.mark.parametrize("before", [True, False], ids=["before it", "after it"])
def test_a_fault_in_any_step_of_enable_is_one_error_and_leaves_nothing(before):
    for step, (error, context, left, works) in run(f"""
import anydevice as ad
from anydevice.virtual import core, machine, ops, surface

def failing(real):
    def fail(*arguments, **options):
        {"" if before else "real(*arguments, **options)"}
        raise RuntimeError("injected\\nand its details")
    return fail

torch.ones(1) @ torch.ones(1)
names = dict(vars(torch._C))
found = []
for step in {STEPS!r}:
    *path, name = step.split(".")
    owner = globals()[path[0]]
    for part in path[1:]:
        owner = getattr(owner, part)
    real = getattr(owner, name)
    remember = surface.defaults.remember
    if step in ("surface.hide", "core.disable"):  # of the clean-up: something fails before them
        surface.defaults.remember = failing(remember)
    setattr(owner, name, failing(real))
    error = context = None
    try:
        ad.virtual.enable(2, "t4")
    except Exception as raised:
        error, context = f"{{type(raised).__name__}}: {{raised}}", raised.__suppress_context__
    setattr(owner, name, real)
    surface.defaults.remember = remember
    if step == "surface.hide":
        surface.hide()
    left = [torch.cuda.is_available(), ad.virtual.enabled() is not None,
            vars(torch._C).keys() ^ names.keys() != set()]
    with ad.virtual_gpus(1, "h100"):
        works = torch.ones(2, device="cuda").tolist()
    found.append([step, [error, context, left, works]])
print(json.dumps(found))
"""):
        assert error, step
        assert error.startswith("BuildError: virtual GPUs cannot be put in place with torch"), step
        assert "RuntimeError: injected)" in error, step
        assert context, step
        assert left == [False, False, False], step
        assert works == [1, 1], step


PROGRAM = """
import sys
from anydevice.virtual import core
start = core.start_afresh
def fail(*arguments):
    raise RuntimeError("injected")
def fail_later(*arguments):
    start(*arguments)
    core.library().anydevice_allocator = fail
core.start_afresh = {fault}
assert "torch" not in sys.modules
import torch
print("ran")
"""


@pytest.mark.parametrize("fault", ["fail", "fail_later"])
def test_a_run_whose_gpus_fail_ends_in_one_sentence(fault, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(fault=fault))
    command = [sys.executable, "-m", "anydevice", "run", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("anydevice: virtual GPUs cannot be put in place with torch")
    assert "(RuntimeError: injected)" in done.stderr


def test_a_library_that_cannot_be_loaded_is_one_sentence(tmp_path):
    done = run("""
from anydevice.virtual import build, core
import pathlib
build.library = lambda: pathlib.Path(json.__file__)
try:
    core.library()
except build.BuildError as error:
    print(json.dumps(str(error)))
""")
    assert done.startswith("the virtual GPU's library cannot be loaded (")
    assert "remove" in done


@pytest.mark.parametrize(
    ("here", "newer"),
    [("2.13.0+cpu", False), ("2.99.0", True), ("2.15.1", False), ("3.0.0a0+git1", True)],
)
def test_a_torch_newer_than_tested(here, newer):
    assert versions.newer_than_tested(here) is newer


def test_an_untested_torch_is_said_once_in_a_program_and_its_children():
    done = python(
        "-c",
        "import subprocess, sys\n"
        "from anydevice.virtual import build, versions\n"
        "build.torch_version = lambda: '2.99.0'\n"
        "versions.announce(); versions.announce()\n"
        "subprocess.run([sys.executable, '-c', 'from anydevice.virtual import build, versions;"
        ' build.torch_version = lambda: "2.99.0"; versions.announce()\'])\n',
    )
    assert done.stderr.count("this is 2.99.0") == 1


def test_a_bug_report_names_what_is_left_out():
    lines = run(f"""
{WITH_CHANGED_SCHEMAS}
from anydevice.virtual import versions
print(json.dumps(versions.report()))
""")
    assert f": {len(lines) - 1} of their parts do not match this torch" in lines[0]
    named = {line.removeprefix("left out: ").partition(": ")[0] for line in lines[1:]}
    assert named >= {schema.partition("(")[0] for schema in CHANGED}
