"""`anydevice run`: programs that know nothing of it, as their users start them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

from anydevice.virtual.process.environment import INHERIT, INHERIT_FOLDER

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-m", "anydevice", "run"]


def run(*words: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *words], cwd=folder, capture_output=True, text=True, env={**os.environ, **more}
    )


def write(folder: Path, program: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(program)
    return path


def test_a_program_is_main_with_its_own_words_folder_and_cuda_gpus(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", "NAME = 'beside the program'", "neighbour.py")
    write(
        tmp_path / "sub",
        """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--gpus")
parser.add_argument("rest", nargs="*")
print(json.dumps([__name__, __file__, sys.argv, sys.path[0], os.getcwd(),
                  vars(parser.parse_args()), [path for path in sys.path if "inherit" in path]]))
import neighbour, torch
torch.manual_seed(0)
from torch import cuda
print(json.dumps([cuda.is_available(), cuda.device_count(), cuda.get_device_name(),
                  cuda.mem_get_info()[1], neighbour.NAME, torch.version.cuda is not None,
                  issubclass(cuda.Stream, torch.Stream), torch.rand(1, device="cuda").item()]))
""",
    )
    script = os.path.join("sub", "program.py")
    done = run(
        *("--gpus", "2", "--gpu=t4", "--memory", "4GiB", script, "--gpus", "9", "x"),
        folder=tmp_path,
    )
    plain, cuda = (json.loads(line) for line in done.stdout.splitlines())
    assert plain == [
        "__main__",
        str(tmp_path / script),
        [script, "--gpus", "9", "x"],
        str(tmp_path / "sub"),
        str(tmp_path),
        {"gpus": "9", "rest": ["x"]},
        [],
    ]
    assert cuda[:-1] == [True, 2, "Tesla T4", 4 << 30, "beside the program", True, True]
    assert cuda[-1] == pytest.approx(0.3990, abs=1e-4)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line == (
        "anydevice: peak memory cuda:0 512 B; 1 transfer (4 B), 1 synchronisation; "
        "2 × Tesla T4, virtual: nothing ran on a real GPU."
    )


def test_a_module_runs_with_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    write(package, "VALUE = 7", "part.py")
    write(package, "", "__init__.py")
    write(package, "import sys\nfrom .part import VALUE\nprint(VALUE, sys.argv[1:])", "train.py")
    done = run("-m", "package.train", "--gpus", "3", folder=tmp_path)
    assert done.stdout == "7 ['--gpus', '3']\n"
    assert done.stderr == ""  # torch was never used: nothing to tell


def test_an_uncaught_error_looks_as_python_shows_it_and_is_explained(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        """
import torch

def step(batch):
    return network(batch)

network = torch.nn.Linear(2, 2).cuda()
step(torch.ones(2))
""",
    )
    done = run("program.py", folder=tmp_path)
    assert done.returncode == 1
    head, _, rest = done.stderr.partition("\nanydevice: ")
    assert head.startswith("Traceback (most recent call last):\n")
    assert f'  File "{program}", line 8, in <module>\n    step(torch.ones(2))\n' in head
    assert str(Path("anydevice", "virtual")) not in head
    assert "network is on cuda:0, batch is on cpu" in rest
    assert "Fix: " in rest
    assert rest.splitlines()[-1].startswith("anydevice: peak memory")


def test_exit_codes_stdin_and_a_closed_stderr_are_the_programs(tmp_path: Path) -> None:
    write(tmp_path, "import sys, torch\nsys.stderr.close()\nsys.exit(int(input()))")
    done = subprocess.run(
        [*RUN, "program.py"], cwd=tmp_path, capture_output=True, text=True, input="7\n"
    )
    assert (done.returncode, done.stdout) == (7, "")
    write(tmp_path, "import os\nos._exit(9)")
    assert run("program.py", folder=tmp_path).returncode == 9
    write(tmp_path, "import sys\nsys.exit('a sentence')")
    done = run("program.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "a sentence\n")


def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, "import torch")
    done = run("program.py", folder=tmp_path, XDG_CACHE_HOME="/dev/full")
    assert done.returncode == 2
    assert "set XDG_CACHE_HOME to a directory that can be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_killed_programs_left_is_removed_a_day_later(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, fresh, running = (
        tmp_path / f"anydevice-run-{pid}-{name}"
        for pid, name in ((ended.pid, "left"), (ended.pid, "fresh"), (os.getpid(), "running"))
    )
    for folder in (left, fresh, running):
        folder.mkdir()
        (folder / "1.json").write_text("{}")
    for folder in (left, running):
        os.utime(folder, (0, 0))
    write(tmp_path, "print('here')")
    done = run("program.py", folder=tmp_path, TMPDIR=str(tmp_path))
    assert done.stdout == "here\n", done.stderr
    assert (left.exists(), fresh.exists(), running.exists()) == (False, True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_program(number: signal.Signals, tmp_path: Path) -> None:
    write(tmp_path, "import time, torch\nprint('here', flush=True)\ntime.sleep(60)")
    with subprocess.Popen(
        [*RUN, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    assert process.returncode == -number
    assert (b"KeyboardInterrupt" in error) == (number == signal.SIGINT)


CHILDREN = """
import os, subprocess, sys
import torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((2,), float(index))

def work(rank, queue):
    x = torch.ones(2, device=f"cuda:{rank}")
    queue.put((torch.cuda.device_count(), x.sum().item(), Numbers.__module__))

if __name__ == "__main__":
    spawn = torch.multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    children = [spawn.Process(target=work, args=(rank, queue)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        print(queue.get())
    for child in children:
        child.join()
    for way in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(
            Numbers(), batch_size=2, num_workers=1, pin_memory=True, multiprocessing_context=way)
        print(way, [batch.cuda().sum().item() for batch in loader])
    os.chdir("/")
    subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"])
"""


FEW_CHILDREN = """
import os, subprocess, sys
import torch

def work(rank, queue):
    queue.put((torch.cuda.device_count(), torch.ones(2, device=f"cuda:{rank}").sum().item()))

if __name__ == "__main__":
    spawn = torch.multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    child = spawn.Process(target=work, args=(1, queue))
    child.start()
    os.chdir("/")
    subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"])
    print(queue.get())
    child.join()
    torch.ones(1).cuda()
"""


def test_children_see_the_gpus(tmp_path: Path) -> None:
    write(tmp_path, FEW_CHILDREN)
    done = run("--gpus", "2", "program.py", folder=tmp_path, TMPDIR=str(tmp_path))
    assert done.stdout.splitlines() == ["2", "(2, 2.0)"], done.stderr
    assert "in 2 processes" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.long
def test_children_see_the_gpus_whatever_started_them(tmp_path: Path) -> None:
    write(tmp_path, CHILDREN)
    done = run("--gpus", "2", "program.py", folder=tmp_path, TMPDIR=str(tmp_path))
    assert done.stdout.splitlines() == [
        "(2, 2.0, '__mp_main__')",
        "(2, 2.0, '__mp_main__')",
        "fork [2.0, 10.0]",
        "spawn [2.0, 10.0]",
        "2",
    ], done.stderr
    assert "in 3 processes" in done.stderr  # the two that were spawned, and the program itself
    assert "10 transfers (88 B)" in done.stderr  # `.item()` is one too
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.long
def test_a_forked_child_that_ends_as_programs_do_leaves_the_tallies(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
import os, sys, subprocess, torch
subprocess.run([sys.executable, "-c", "import torch; torch.ones(9, device='cuda').cpu()"])
if os.fork() == 0:
    sys.exit()
os.wait()
torch.ones(9, device="cuda").cpu()
""",
    )
    done = run("program.py", folder=tmp_path, TMPDIR=str(tmp_path))
    (line,) = done.stderr.splitlines()
    assert "2 transfers (72 B)" in line
    assert "in 2 processes" in line
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    "launcher",
    ["torchrun", pytest.param("python -u -m torch.distributed.run", marks=pytest.mark.long)],
)
def test_torchrun_gives_each_process_its_gpu(launcher: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        """
import os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
line = f"{torch.ones(1000, device='cuda').device}\\n"
os.write(1, line.encode())  # at once: print() writes in pieces, and the ranks share the output
""",
    )
    words = (*launcher.split(), "--nproc-per-node", "2", "program.py")
    done = run("--gpus", "2", *words, folder=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["cuda:0", "cuda:1"], done.stderr
    assert "peak memory cuda:0 4.0 KiB, cuda:1 4.0 KiB" in done.stderr
    assert done.stderr.count("nothing ran on a real GPU") == 1


@pytest.mark.long
def test_python_itself_takes_its_options_and_its_input(tmp_path: Path) -> None:
    program = "import sys, torch\nprint(sys.flags.utf8_mode, torch.cuda.device_count(), sys.argv)"
    write(tmp_path, program)
    done = run("python", "-X", "utf8", "program.py", "-m", folder=tmp_path)
    assert done.stdout == "1 1 ['program.py', '-m']\n", done.stderr
    command = [*RUN, "--gpus", "3", "python"]
    done = subprocess.run(command, input=program, capture_output=True, text=True)
    assert done.stdout == f"{sys.flags.utf8_mode} 3 ['']\n", done.stderr


def test_cuda_visible_devices_chooses_in_a_program(tmp_path: Path) -> None:
    """Empty before, it hides the real GPUs and not those that are asked for at the same time."""
    write(
        tmp_path,
        """
import os, subprocess, sys, torch
program = "import torch; print(torch.cuda.device_count(), torch.cuda.is_available())"
child = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
subprocess.run([sys.executable, "-c", program], env=child, check=True)
print(torch.cuda.device_count())
os.environ["CUDA_VISIBLE_DEVICES"] = "3,1"
x = torch.ones(1000, device="cuda")
print(torch.cuda.device_count())
""",
    )
    done = run("--gpus", "4", "program.py", folder=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.stdout == "0 False\n4\n2\n", done.stderr
    assert "peak memory cuda:3 4.0 KiB; 0 transfers" in done.stderr  # its number in the machine


@pytest.mark.long
def test_ranks_that_each_see_one_gpu_work_together(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
import os, torch
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
torch.distributed.init_process_group("nccl")
x = torch.ones(1000, device="cuda")
torch.distributed.all_reduce(x)
line = f"{torch.cuda.device_count()} {x.device} {x[0].item()}\\n"
os.write(1, line.encode())  # at once: print() writes in pieces, and the ranks share the output
torch.distributed.destroy_process_group()
""",
    )
    done = run("--gpus", "2", "torchrun", "--nproc-per-node", "2", "program.py", folder=tmp_path)
    assert done.stdout == "1 cuda:0 2.0\n" * 2, done.stderr
    assert re.search(r"peak memory cuda:0 \S+ KiB, cuda:1 \S+ KiB;", done.stderr)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with this package, and anydevice.pth, as pip puts it there."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path and not path.endswith(".zip")]
    (packages / "__editable__.pth").write_text("\n".join([*others, str(ROOT / "src")]))
    shutil.copy(INHERIT_FOLDER / "anydevice.pth", packages)
    return environment / "bin" / "python"


@pytest.mark.long
def test_a_child_with_another_pythonpath_finds_the_gpus(installed: Path, tmp_path: Path) -> None:
    """By anydevice.pth; one in isolated mode takes nothing from the environment."""
    write(
        tmp_path,
        """
import os, subprocess, sys
count = '''
import sys, torch
print(torch.cuda.device_count(), [path for path in sys.path if "inherit" in path])
'''
fresh = {**os.environ, "PYTHONPATH": "/somewhere/else"}
subprocess.run([sys.executable, "-c", count], env=fresh, check=True)
for mode in ("-E", "-I"):
    subprocess.run([sys.executable, mode, "-c", count], check=True)
""",
    )
    command = [str(installed), "-m", "anydevice", "run", "--gpus", "3", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "3 []\n3 []\n0 []\n", done.stderr
    without = subprocess.run(
        [str(installed), "-c", "import sys; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert (without.stdout, without.stderr) == ("False\n", "")


def test_no_folder_but_the_packages_runs_code_as_python_starts(
    installed: Path, tmp_path: Path
) -> None:
    another = tmp_path / "anydevice" / "virtual" / "process" / "inherit"
    another.mkdir(parents=True)
    shown = "import sys; print([path for path in sys.path if 'inherit' in path])"
    for folder in (tmp_path, another):
        (folder / "sitecustomize.py").write_text("print('code from the environment')")
        (folder / "json.py").write_text("print('not the json module')")
    for folder in (tmp_path, another, INHERIT_FOLDER):
        for mode in ([], ["-E"], ["-I"]):
            done = subprocess.run(
                [str(installed), *mode, "-c", f"import json; {shown}"],
                env={**os.environ, INHERIT: str(folder)},
                cwd=tmp_path / "anydevice",
                capture_output=True,
                text=True,
            )
            assert (done.stdout, done.stderr) == ("[]\n", ""), (folder, mode)


def test_a_trace_holds_each_event_with_the_programs_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
import os, torch
x = torch.ones(256, pin_memory=True).to("cuda", non_blocking=True)
os.chdir("/")
if x.sum() > 3:
    del x
if os.fork() == 0:
    os._exit(0)
os.wait()
""",
    )
    done = run("--trace", "trace.json", "program.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "trace.json"]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    told = [event for event in events if event["ph"] == "i"]
    assert all(event["args"]["where"].startswith(str(tmp_path)) for event in told)
    first = next(event for event in told if event["cat"] == "transfer")
    assert first["name"] == "1.0 KiB host → cuda:0"
    assert first["args"]["where"].endswith("program.py:3")
    assert first["args"]["bytes"] == 1024
    assert first["args"]["pinned"]
    assert not first["args"]["blocking"]
    waits = [event["args"]["where"] for event in told if event["cat"] == "synchronise"]
    assert waits
    assert all(where.endswith("program.py:5") for where in waits)
    memory = [event["args"]["bytes"] for event in events if event["ph"] == "C"]
    assert max(memory) >= 1024
    assert {event["ph"] for event in events} == {"M", "i", "C"}


@pytest.mark.long
def test_a_trace_of_tensors_that_the_garbage_collector_frees(tmp_path: Path) -> None:
    """It runs while an event is being written, and what it frees is an event, too."""
    write(
        tmp_path,
        """
import gc, torch
gc.set_threshold(5)
for _ in range(100):
    cycle = [torch.ones(9, device="cuda")]
    cycle.append(cycle)
""",
    )
    command = [*RUN, "--trace", "trace.json", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "allocate" for event in events) >= 100


def test_a_trace_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, "import torch\nfor _ in range(200): torch.ones(9).cuda()\nprint('done')")
    done = run("--trace", "/dev/full", "program.py", folder=tmp_path)
    assert done.stdout == "done\n"
    assert "anydevice: /dev/full is not written: [Errno 28] No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.path.exists("/dev/full")


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    write(tmp_path, "import builtins\nbuiltins.other = 'ran'", "sitecustomize.py")
    write(tmp_path, "print(other)\nimport sitecustomize\nprint(sitecustomize.__file__)")
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(tmp_path), *([before] if before else [])])
    done = run("program.py", folder=tmp_path, PYTHONPATH=path)
    assert done.stdout.splitlines() == ["ran", str(tmp_path / "sitecustomize.py")]


@pytest.mark.long
def test_a_reader_that_goes_away_and_a_debugger_are_as_with_python(tmp_path: Path) -> None:
    write(tmp_path, "import torch\nfor i in range(10**6): print(i)")
    command = f"{' '.join(RUN)} program.py | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "0\n"
    assert "BrokenPipeError" in done.stderr
    write(tmp_path, "x = 5\nbreakpoint()\nprint('after', x)")
    debugged = subprocess.run(
        [*RUN, "program.py"], cwd=tmp_path, input="x = 6\nc\n", capture_output=True, text=True
    )
    assert "after 6" in debugged.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "expected a program, such as train.py"),
        ("progam.py", "got progam.py, which does not exist: did you mean program.py?"),
        (".", "got ., which is a directory"),
        ("-m no.such.module", "got no.such.module, which does not exist"),
        ("-m json.nope", "got json.nope, which does not exist"),
        ("ls", "expected a Python program, got ls, which is not one"),
        ("python progam.py", "got progam.py, which does not exist: did you mean program.py?"),
        ("python -m no.such.module", "got no.such.module, which does not exist"),
        ("python -uI program.py", "expected a Python that reads its environment, got -uI"),
        ("python3.99 program.py", "got python3.99, which does not exist"),
        ("--gpus 0 program.py", "expected 1 to 16 virtual GPUs, got 0"),
        ("--gpus 17 program.py", "expected 1 to 16 virtual GPUs, got 17"),
        ("--gpus two program.py", "expected 1 to 16 virtual GPUs, got 'two'"),
        ("--gpu h1000 program.py", "did you mean h100"),
        ("--memory 16Q program.py", "expected a size such as 16GiB"),
        ("--memory 0 program.py", "expected a size such as 16GiB"),
        ("--gups 2 program.py", "did you mean --gpus?"),
        ("--foo program.py", "got --foo: it has --gpus, --gpu, --memory, --trace."),
        ("--gpus 2 -- progam.py", "got progam.py, which does not exist: did you mean program.py?"),
        ("--gpus", "expected a value after --gpus"),
        ("--trace no/such/folder/t.json program.py", "expected a file for --trace"),
        ("--trace . program.py", "expected a file for --trace"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    words: str, sentence: str, tmp_path: Path
) -> None:
    write(tmp_path, "print('it ran')")
    done = run(*words.split(), folder=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("anydevice: ")
    assert sentence in line
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_a_folder_for_temporary_files_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, "print('it ran')")
    done = run("program.py", folder=tmp_path, TMPDIR=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("anydevice: expected a folder for temporary files that can be written")


def test_a_real_gpu_in_sight_is_refused(tmp_path: Path) -> None:
    """As torch's CUDA build counts it; here a stand-in does, since there is none to count."""
    write(
        tmp_path,
        """
import anydevice.virtual.machine as machine
begin = machine.begin
def begin_beside_a_gpu(wanted):
    import torch
    torch._C._cuda_getDeviceCount = lambda: 1
    begin(wanted)
import anydevice.virtual.process.import_hook as boot
boot.begin = begin_beside_a_gpu
import torch
""",
    )
    done = run("program.py", folder=tmp_path)
    assert done.returncode == 2
    assert "expected a process without real GPUs, got one that sees 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_without_torch_starts_as_quickly_as_ever(tmp_path: Path) -> None:
    write(tmp_path, "import sys\nprint([name for name in sys.modules if 'anydevice' in name])")
    begin = time.perf_counter()
    done = run("program.py", folder=tmp_path)
    assert done.stdout == "[]\n"
    assert time.perf_counter() - begin < 5
