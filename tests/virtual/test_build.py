"""Building the native library: what cannot be says what to do, and the cache does not grow."""

import os
import platform
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anydevice.files import lives
from anydevice.virtual import build, jobs, ops

# In place of the compiler: it takes the name of what it compiles down, and makes an empty object.
QUICK = """#!/bin/sh
case "$*" in
  *-shared*) exec c++ "$@";;
esac
for last; do :; done
name=$(basename "$last" .part)
echo "$name" >> "$(dirname "$0")/compiled"
if [ "$name" = kernels ] && [ -e "$(dirname "$0")/broken" ]; then
  while [ ! -e "$(dirname "$last")/core.o" ]; do sleep 0.05; done
  exit 1
fi
echo | exec c++ -c -x c++ - -o "$last"
"""
# This one never ends, and neither does the process that it starts.
SLOW = """#!/bin/sh
sleep 1000 &
echo $! $$ >> "$(dirname "$0")/running"
wait
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Puts a program in the compiler's place, and the cache into the test's folder."""

    def put(text):
        program = tmp_path / "compiler"
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("CXX", str(program))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    return put


@pytest.mark.parametrize(
    ("compiler", "wanted"),
    [
        ("no-such-compiler", "install the package g++"),
        ("false", "its messages are in"),
        ("g++ '", "expected a compiler's command in CXX, got"),
    ],
)
def test_a_build_that_cannot_be_says_what_to_do(compiler, wanted, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "anydevice.virtual.build"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": compiler},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert wanted in done.stderr.splitlines()[-1]


def test_a_build_that_fails_for_want_of_room_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOM", 1 << 60)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(build.BuildError, match=r"No space left on device.*set XDG_CACHE_HOME"):
        build.library()


def test_a_build_that_was_interrupted_is_resumed(compiler, tmp_path, capsys):
    compiler(QUICK)
    (tmp_path / "broken").touch()
    with pytest.raises(build.BuildError, match=r"its messages are in"):
        build.library()
    (tmp_path / "broken").unlink()
    (kept,) = (tmp_path / "cache" / "anydevice").iterdir()
    (kept / build.UNFINISHED / "half.s").write_text("of a killed compiler")
    library = build.library()
    compiled = (tmp_path / "compiled").read_text().split()
    assert sorted(compiled) == ["core", "kernels", "kernels"]
    left = {"anydevice_virtual.so", "anydevice_virtual.json", "build.log", "lock"}
    assert {file.name for file in library.parent.iterdir()} == left
    assert build._is_whole(library)


def test_a_library_that_the_package_carries_needs_no_compiler_and_no_cache(
    compiler, tmp_path, monkeypatch
):
    compiler(QUICK)
    monkeypatch.setattr(build, "READY", tmp_path / "ready")
    ready = build.make_ready()
    assert ready.is_relative_to(tmp_path / "ready")
    (tmp_path / "compiler").unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/full")
    assert build.is_built()
    assert build.library() == ready
    assert ops.kept_op_list(ready.parent) == next(ready.parent.glob("ops-*.txt")).read_text()
    ready.write_bytes(b"")
    with pytest.raises(build.BuildError, match="/dev/full"):
        build.library()


@pytest.mark.parametrize(("torch", "loads"), [("+cpu", True), ("+cu130", True), ("a0+git", False)])
def test_a_library_of_a_release_is_for_its_builds_alone(torch, loads, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "READY", tmp_path)
    monkeypatch.setattr(build, "torch_version", lambda: "2.99.0")
    ready = tmp_path / build._ready_key() / build.LIBRARY
    ready.parent.mkdir()
    ready.write_bytes(b"a library")
    build._write_down(ready)
    monkeypatch.setattr(build, "torch_version", lambda: f"2.99.0{torch}")
    monkeypatch.setenv("CXX", "another")
    assert build.is_built() == loads


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc"
    or platform.machine() != "x86_64"
    or not shutil.which("objdump"),
    reason="needs glibc on x86_64, and binutils",
)
@pytest.mark.parametrize(("part", "newest"), [("GLIBC", "2.28"), ("GLIBCXX", "3.4.25")])
def test_the_library_loads_with_the_libraries_of_manylinux_2_28(part, newest):
    command = ["objdump", "-T", build.library()]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wanted = {
        tuple(map(int, found.split("."))) for found in re.findall(rf"{part}_([\d.]+)", symbols)
    }
    assert wanted
    assert max(wanted) <= tuple(map(int, newest.split(".")))


def test_objects_that_cannot_be_linked_are_not_kept(compiler, tmp_path):
    compiler(QUICK.replace('exec c++ "$@"', "exit 1"))
    with pytest.raises(build.BuildError, match=r"its messages are in"):
        build.library()
    (kept,) = (tmp_path / "cache" / "anydevice").iterdir()
    assert not (kept / build.UNFINISHED).exists()


def test_a_build_says_what_it_does_in_plain_lines(compiler, capsys):
    compiler(QUICK)
    build.library()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "anydevice: building the virtual GPU (once, about a minute) …"
    done = [line.partition(" done after ")[0] for line in lines[1:4]]
    assert sorted(done[:2]) == ["anydevice: core", "anydevice: kernels"]
    assert done[2] == "anydevice: linking"
    assert lines[4].startswith("anydevice: built in ")
    assert len(lines) == 5


def test_on_a_terminal_one_line_changes(compiler):
    compiler(QUICK)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "anydevice.virtual.build"]
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL) as building:
        os.close(theirs)
        shown = b""
        while part := read(ours):
            shown += part
    os.close(ours)
    assert building.returncode == 0
    text = shown.decode()
    assert "building the virtual GPU (once, about a minute): core" in text
    assert text.count("\n") == 1
    assert text.rpartition(jobs.ERASE)[2].startswith("anydevice: built in ")


def read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # so Linux says that the other end is closed
        return b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_killed_leaves_no_compiler_running(number, compiler, tmp_path):
    compiler(SLOW)
    running = tmp_path / "running"
    with subprocess.Popen([sys.executable, "-m", "anydevice.virtual.build"]) as building:
        wait_until(lambda: running.exists() and "\n" in running.read_text())
        building.send_signal(number)
    pids = running.read_text().split()
    assert len(pids) in (2, 4)
    wait_until(lambda: not any(lives(pid) and not is_zombie(pid) for pid in pids))


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def is_zombie(pid):
    """Ended, but nobody has asked for its exit code; in a container perhaps nobody ever does."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_a_build_that_nobody_loads_for_a_month_makes_room(tmp_path):
    libraries = [tmp_path / f"torch-{name}" / "anydevice_virtual.so" for name in "abc"]
    for library, days in zip(libraries, (0, 10, 40), strict=True):
        library.parent.mkdir()
        library.touch()
        then = time.time() - days * 24 * 3600
        os.utime(library, (then, then))
    build._remove_unused(libraries[0].parent)
    assert [library.exists() for library in libraries] == [True, True, False]


def test_loading_a_library_keeps_it():
    library = build.library()
    os.utime(library, (0, 0))
    assert build.library() == library
    assert library.stat().st_mtime > time.time() - 60


def test_a_folder_of_sources_that_no_unit_lists_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "one.cpp").touch()
    assert build.units()["kernels"] == [tmp_path / "kernels" / "one.cpp"]
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "two.cpp").touch()
    with pytest.raises(build.BuildError, match=r"add fresh to a unit"):
        build.units()


def test_every_source_is_in_one_unit():
    listed = [file for files in build.units().values() for file in files]
    assert sorted(listed) == sorted(build.NATIVE.rglob("*.cpp"))


def test_a_source_that_moves_to_another_folder_is_another_library(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / "random").mkdir()
    (tmp_path / "memory" / "one.cpp").write_text("int one;")
    before = build._key()
    (tmp_path / "memory" / "one.cpp").rename(tmp_path / "random" / "one.cpp")
    assert build._key() != before


@pytest.mark.skipif(not shutil.which("nm"), reason="no nm")
def test_the_library_serves_every_version_of_python() -> None:
    listed = ["nm", "--dynamic", "--undefined-only", "--portability", str(build.library())]
    needed = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert any("c10" in name for name in needed)
    assert [name for name in needed if name.startswith(("Py", "_Py"))] == []
