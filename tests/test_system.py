"""Both branches of what Linux has and others lack, and that it is asked in one place alone."""

import os
import re
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anydevice import system

PACKAGE = Path(system.__file__).parent
# A plan's sandbox is Linux's own; elsewhere copies.py takes its place.
LINUX_ALONE = ("mounts", "landlock", "inherited", "syscalls")
LINUX_WORDS = re.compile(
    r"/proc/|/sys/|memfd|pidfd|prctl|sched_getaffinity|signalfd|O_TMPFILE|O_PATH|epoll|eventfd|"
    r"/dev/shm|process_cpu_count|posix_fallocate|copy_file_range|sendfile|O_DIRECT"
)


@pytest.fixture(params=["Linux's own", "portable"])
def branch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "portable" and sys.platform != "linux":
        pytest.skip("not Linux")
    monkeypatch.setattr(system, "LINUX", request.param != "portable")
    return str(request.param)


def readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def test_the_end_of_a_process_can_be_waited_for(branch: str) -> None:
    process = subprocess.Popen(["sleep", "60"])
    (end,) = system.ends([process.pid])
    assert not readable(end, 0.2)
    process.kill()
    process.wait()
    assert readable(end, 30)
    os.close(end)


def test_of_a_process_that_has_ended_the_end_is_there_already(branch: str) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    (end,) = system.ends([process.pid])
    assert readable(end, 30)
    os.close(end)


def test_an_open_folder_has_a_path(branch: str, tmp_path: Path) -> None:
    before = os.getcwd()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert system.folder_of(descriptor) == os.path.realpath(tmp_path)
    finally:
        os.close(descriptor)
    assert os.getcwd() == before


def test_figures_of_the_machine(branch: str) -> None:
    assert 1 <= system.usable_cores() <= (os.cpu_count() or 1)
    assert system.memory() > 1 << 28
    assert 1 << 20 < system.peak_memory() < system.memory()
    assert isinstance(system.process_space(), str)


def test_no_file_of_the_kernel_is_read_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "LINUX", False)
    assert system.kernel_lines("/proc/self/status") == system.kernel_files("/proc/*") == []
    assert system.process_space() == ""


def test_libraries_have_the_names_and_flags_of_their_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "MACOS", True)
    assert system.library_file("libc10") == "libc10.dylib"
    assert system.link_flags(Path("/torch/lib"))[0] == "-Wl,-rpath,/torch/lib"
    monkeypatch.setattr(system, "MACOS", False)
    assert system.library_file("libc10") == "libc10.so"
    assert system.link_flags(Path("/torch/lib")) == ()


CHILD = """
import os, sys, time
sys.path[:] = {path!r}
from anydevice import system
own, lifeline = os.pipe()
os.set_inheritable(own, True)
child = os.fork()
if child == 0:
    os.close(lifeline)
    os.setpgid(0, 0)
    system.end_with(os.getppid(), own)
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""


@pytest.mark.parametrize("portable", ["", "1"])
def test_a_process_ends_with_its_parent_that_is_killed(portable: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(path=sys.path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, system.PORTABLE: portable},
    )
    assert parent.stdout
    child = int(parent.stdout.readline())
    (end,) = system.ends([child])
    assert not readable(end, 0.1)
    parent.kill()
    parent.communicate()  # the output ends when the child has, who holds it too
    assert readable(end, 30)
    os.close(end)


@pytest.mark.filterwarnings("error")
def test_a_fork_beside_threads_warns_of_nothing() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    if (child := system.fork()) == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    over.set()
    thread.join()


def test_a_new_python_has_the_modules_and_the_open_files_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "written_here.py").write_text(
        "import os\ndef main(first, second):\n    os.write(second, os.read(first, 9) + b'!')\n"
    )
    reading, writing = os.pipe()
    answer, answered = os.pipe()
    os.write(writing, b"hello")
    sys.path.insert(0, str(tmp_path))
    try:
        process = system.new_python("written_here", "main", reading, answered)
    finally:
        sys.path.remove(str(tmp_path))
    assert os.getpgid(process) == process
    assert not os.get_inheritable(reading)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert os.read(answer, 9) == b"hello!"
    for descriptor in (reading, writing, answer, answered):
        os.close(descriptor)


def test_what_only_linux_has_is_asked_in_one_place() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.name != "system.py" and file.stem not in LINUX_ALONE
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if LINUX_WORDS.search(line.partition("#")[0]) and "kernel_" not in line
    ]
    a_path_that_a_program_names = "plan/hollow/sandbox/copies.py"
    assert [line for line in found if not line.startswith(a_path_that_a_program_names)] == []


def test_an_open_file_is_sent_while_the_receiver_says_something_else() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs:
        theirs.send(b"something else")
        system.send_open_file(ours.fileno(), writing)
        received = system.received_open_file(theirs.fileno())
        assert ours.recv(99) == b"something else"
        os.write(received, b"hello")
        assert os.read(reading, 9) == b"hello"
        ours.close()
        with pytest.raises(EOFError):
            system.received_open_file(theirs.fileno())
    for descriptor in (reading, writing, received):
        os.close(descriptor)
