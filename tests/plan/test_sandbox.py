"""A program under plan changes nothing on the disk, however it writes, and reads what it wrote."""

import ctypes
import encodings.cp437  # noqa: F401 - zipfile's; somebody else may not read this Python's files
import logging
import multiprocessing.popen_fork
import multiprocessing.queues
import multiprocessing.synchronize  # noqa: F401
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import anydevice as ad
from anydevice import system
from anydevice.notices import say_once
from anydevice.plan.hollow import sandbox
from anydevice.plan.hollow.program import Program
from anydevice.plan.hollow.sandbox import mounts
from anydevice.plan.hollow.sandbox.checkpoints import sparse
from anydevice.plan.hollow.sandbox.copies import Copies
from anydevice.plan.planning import plan

NOBODY = 65534
Way = Callable[[Path], object]
WAYS: dict[str, Way] = {}


def way(function: Way) -> Way:
    WAYS[function.__name__] = function
    return function


@way
def opened_to_write(folder: Path) -> None:
    with open(folder / "text", "w") as file:
        file.write("other")
    assert (folder / "text").read_text() == "other"


@way
def opened_to_append(folder: Path) -> None:
    with open(f"{folder}/text", "ab") as file:
        file.write(b" and more")
    assert (folder / "text").read_bytes() == b"a text\n and more"


@way
def opened_to_update(folder: Path) -> None:
    with open(folder / "text", "r+") as file:
        file.write("A")
    assert (folder / "text").read_text() == "A text\n"


@way
def made_anew(folder: Path) -> None:
    with open(folder / "new", "x") as file:
        file.write("new")
    assert "new" in os.listdir(folder)
    assert (folder / "new").exists()
    assert sorted(folder.glob("n*")) == [folder / "new"]


@way
def by_a_descriptor(folder: Path) -> None:
    descriptor = os.open(folder / "text", os.O_RDWR | os.O_TRUNC)
    os.write(descriptor, b"other")
    os.ftruncate(descriptor, 2)
    os.close(descriptor)
    assert (folder / "text").read_text() == "ot"


@way
def by_a_path(folder: Path) -> None:
    (folder / "text").write_text("other")
    (folder / "sub/bytes").write_bytes(b"1")
    (folder / "touched").touch()
    assert (folder / "text").read_text() == "other"
    assert (folder / "sub/bytes").read_bytes() == b"1"
    assert {path.name for path in folder.iterdir()} >= {"touched", "text", "sub"}


@way
def removed(folder: Path) -> None:
    os.remove(folder / "text")
    (folder / "sub/bytes").unlink()
    os.rmdir(folder / "empty")
    assert not (folder / "text").exists()
    assert os.listdir(folder / "sub") == ["deep"]
    assert not os.path.isdir(folder / "empty")


@way
def removed_and_made(folder: Path) -> None:
    shutil.rmtree(folder / "sub")
    os.mkdir(folder / "sub")
    assert os.listdir(folder / "sub") == []
    (folder / "sub/bytes").write_text("again")
    assert os.listdir(folder / "sub") == ["bytes"]


@way
def renamed(folder: Path) -> None:
    os.rename(folder / "text", folder / "sub/moved")
    (folder / "run").rename(folder / "sub/run")
    assert (folder / "sub/moved").read_text() == "a text\n"
    assert os.access(folder / "sub/run", os.X_OK)
    assert not (folder / "text").exists()


@way
def replaced(folder: Path) -> None:
    (folder / "temporary").write_text("whole")
    os.replace(folder / "temporary", folder / "text")
    assert (folder / "text").read_text() == "whole"
    assert not (folder / "temporary").exists()


@way
def a_folder_renamed(folder: Path) -> None:
    os.rename(folder / "sub", folder / "other")
    assert (folder / "other/deep/bytes").read_bytes() == b"deep"
    assert not (folder / "sub").exists()


@way
def folders_made(folder: Path) -> None:
    os.mkdir(folder / "one")
    os.makedirs(folder / "two/three", exist_ok=True)
    (folder / "sub/new/newer").mkdir(parents=True, exist_ok=True)
    (folder / "two/three/file").write_text("x")
    found = [(Path(at).name, inside, files) for at, inside, files in os.walk(folder / "two")]
    assert found == [("two", ["three"], []), ("three", [], ["file"])]


@way
def truncated(folder: Path) -> None:
    os.truncate(folder / "text", 1)
    assert (folder / "text").stat().st_size == 1
    assert (folder / "text").read_text() == "a"


@way
def linked(folder: Path) -> None:
    os.symlink("text", folder / "latest")
    (folder / "latest").write_text("through a link")
    assert (folder / "text").read_text() == "through a link"
    os.link(folder / "sub/bytes", folder / "twin")
    assert (folder / "twin").read_bytes() == b"bytes"


@way
def through_a_link(folder: Path) -> None:
    (folder / "link").write_text("other")
    (folder / "folder_link/bytes").write_text("other")
    assert (folder / "sub/bytes").read_text() == "other"
    os.remove(folder / "link")
    assert (folder / "text").read_text() == "other"


@way
def modes_and_times(folder: Path) -> None:
    os.chmod(folder / "text", 0o600)
    (folder / "run").chmod(0o644)
    os.utime(folder / "text", (1, 1))
    os.utime(folder, (2, 2))
    assert stat.S_IMODE((folder / "text").stat().st_mode) == 0o600
    assert (folder / "text").stat().st_mtime == 1


@way
def relative(folder: Path) -> None:
    os.chdir(folder)
    with open("text", "w") as file:
        file.write("other")
    os.makedirs("runs/1")
    Path("runs/1/log").write_text("x")
    os.remove("sub/../sub/bytes")
    assert Path("text").read_text() == "other"
    assert os.listdir("runs") == ["1"]
    assert not os.path.exists("sub/bytes")


@way
def within_a_descriptor(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.unlink("text", dir_fd=descriptor)
    os.mkdir("made", dir_fd=descriptor)
    other = os.open("sub/bytes", os.O_WRONLY | os.O_TRUNC, dir_fd=descriptor)
    os.write(other, b"other")
    os.close(other)
    os.rename("run", "ran", src_dir_fd=descriptor, dst_dir_fd=descriptor)
    os.close(descriptor)
    assert (folder / "ran").exists()
    assert (folder / "sub/bytes").read_bytes() == b"other"


@way
def shutils(folder: Path) -> None:
    shutil.copy(folder / "sub/bytes", folder / "text")
    shutil.copytree(folder / "sub", folder / "copy")
    shutil.move(folder / "run", folder / "sub/deep")
    shutil.rmtree(folder / "sub")
    assert (folder / "text").read_text() == "bytes"
    assert (folder / "copy/deep/bytes").read_bytes() == b"deep"
    assert not (folder / "sub").exists()


@way
def a_data_base(folder: Path) -> None:
    with sqlite3.connect(folder / "base.sqlite") as base:
        base.execute("insert into kept values (2)")
        base.execute("create table other (x)")
    base.close()
    again = sqlite3.connect(f"{folder}/base.sqlite")
    assert again.execute("select x from kept").fetchall() == [(1,), (2,)]
    again.close()


@way
def arrays(folder: Path) -> None:
    np.save(folder / "array.npy", np.zeros(5))
    assert np.load(folder / "array.npy").shape == (5,)
    np.arange(3).tofile(folder / "text")
    assert (folder / "text").stat().st_size == 24
    np.savez(folder / "new.npz", x=np.ones(2))
    assert np.load(folder / "new.npz")["x"].sum() == 2


@way
def an_array_on_disk(folder: Path) -> None:
    array = np.memmap(folder / "array.raw", dtype="int64", mode="r+")
    array[:] = 7
    array.flush()
    assert np.fromfile(folder / "array.raw", "int64").tolist() == [7] * 4


@way
def a_log(folder: Path) -> None:
    handler = logging.FileHandler(folder / "text")
    logging.getLogger("some").addHandler(handler)
    logging.getLogger("some").error("written")
    handler.close()
    assert (folder / "text").read_text() == "a text\nwritten\n"


@way
def safe_tensors(folder: Path) -> None:
    safetensors.torch.save_file({"x": torch.ones(2)}, folder / "model.safetensors")
    assert safetensors.torch.load_file(folder / "model.safetensors")["x"].sum() == 2


@way
def torch_saves(folder: Path) -> None:
    torch.save(torch.ones(3), folder / "model.pt")
    assert torch.load(folder / "model.pt").sum() == 3
    with open(folder / "text", "wb") as file:
        torch.save(torch.ones(2), file)
    assert torch.load(folder / "text", mmap=True).sum() == 2


@way
def in_a_thread(folder: Path) -> None:
    thread = threading.Thread(target=opened_to_write, args=(folder,))
    thread.start()
    thread.join()
    assert (folder / "text").read_text() == "other"


class Writing(torch.utils.data.Dataset[int]):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        (self.folder / f"cache{index}").write_text(str(index))
        shutil.rmtree(self.folder / "sub", ignore_errors=True)
        return index


@way
def in_a_worker(folder: Path) -> None:
    for _ in torch.utils.data.DataLoader(Writing(folder), num_workers=2):
        pass
    (folder / "after").write_text("x")


# Native code and other programs: without mounts or Landlock nothing keeps them from writing.
STRONG: dict[str, Way] = {}


def strong(function: Way) -> Way:
    STRONG[function.__name__] = function
    return function


@strong
def other_programs(folder: Path) -> None:
    subprocess.run(["rm", "-rf", folder / "sub"], check=False, stderr=subprocess.DEVNULL)
    os.system(f"echo other > {folder}/text 2>/dev/null; touch {folder}/new 2>/dev/null")
    subprocess.run(f"cd {folder} && mv run ran", shell=True, stderr=subprocess.DEVNULL, check=False)


@strong
def native_code(folder: Path) -> None:
    libc = ctypes.CDLL(None)
    for name in (b"text", b"run"):
        path = bytes(folder) + b"/" + name
        libc.truncate(path, 1)
        libc.unlink(path)
    libc.rename(bytes(folder) + b"/array.raw", bytes(folder) + b"/other.raw")
    libc.mkdir(bytes(folder) + b"/made", 0o755)
    descriptor = libc.open(bytes(folder) + b"/base.sqlite", os.O_RDWR | os.O_TRUNC)
    libc.write(descriptor, b"x", 1)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Files of some kinds; not in pytest's folder, which is its user's alone."""
    made = Path(tempfile.mkdtemp(prefix="kept-", dir="/var/tmp"))
    made.chmod(0o755)
    (made / "text").write_text("a text\n")
    (made / "run").write_text("#!/bin/sh\n")
    (made / "run").chmod(0o755)
    (made / "sub/deep").mkdir(parents=True)
    (made / "empty").mkdir()
    (made / "sub/bytes").write_bytes(b"bytes")
    (made / "sub/deep/bytes").write_bytes(b"deep")
    (made / "link").symlink_to("text")
    (made / "folder_link").symlink_to(made / "sub")
    np.arange(4).tofile(made / "array.raw")
    with sqlite3.connect(made / "base.sqlite") as base:
        base.execute("create table kept (x)")
        base.execute("insert into kept values (1)")
    base.close()
    if os.geteuid() == 0:
        for path in (made, *made.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    for path in (made, *made.rglob("*")):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    yield made
    shutil.rmtree(made)


def looked_at(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Every byte, name, mode, owner and time."""
    seen = {}
    for path in (folder, *folder.rglob("*")):
        about = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        times = about.st_mtime_ns, about.st_ctime_ns
        seen[str(path)] = (about.st_mode, about.st_ino, about.st_uid, about.st_gid, *times, content)
    return seen


def inside(kind: str, act: Callable[[], object]) -> str:
    """Acts in a forked process in a sandbox of this kind; what went wrong there, if anything."""
    sys.stdout.flush()
    private = tempfile.mkdtemp(prefix="private-", dir="/var/tmp")
    os.chmod(private, 0o777)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.environ[sandbox.CHOICE] = kind.removesuffix(" of a user")
            if kind.endswith(" of a user"):
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: /proc/self is this user's again
            sandbox.enter(private, {writing, 0, 1, 2})
            with sparse():
                act()
            said = ""
        except BaseException as error:
            import traceback

            said = "".join(traceback.format_exception(error)) or repr(error)
        os.write(writing, said.encode()[:60000])
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    shutil.rmtree(private)
    return said


KINDS = ["mounts", "mounts of a user", "landlock", "landlock of a user", "calls"]
if not system.LINUX:
    KINDS = ["calls"]
linux = pytest.mark.skipif(not system.LINUX, reason="other systems have no mounts and no forks")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each protection that there is."""
    if request.param.endswith("user") and os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    if said := inside(request.param, lambda: None):
        pytest.skip(f"not on this machine: {said.splitlines()[-1]}")
    return str(request.param)


@pytest.mark.parametrize("name", WAYS)
def test_a_way_to_write_changes_nothing(name: str, kind: str, folder: Path) -> None:
    before = looked_at(folder)
    said = inside(kind, lambda: WAYS[name](folder))
    assert looked_at(folder) == before
    assert not said, said


@pytest.mark.parametrize("name", STRONG)
def test_other_programs_and_native_code_change_nothing(name: str, kind: str, folder: Path) -> None:
    if kind == "calls":
        pytest.skip("needs mounts or Landlock")
    before = looked_at(folder)
    said = inside(kind, lambda: STRONG[name](folder))
    assert looked_at(folder) == before
    assert not said, said


@linux
def test_other_programs_read_what_was_written(folder: Path) -> None:
    def act() -> None:
        (folder / "text").write_text("other")
        assert subprocess.check_output(["cat", folder / "text"]) == b"other"
        subprocess.run(["cp", "text", "twin"], cwd=folder, check=True)
        assert (folder / "twin").read_text() == "other"

    assert not inside("mounts", act)


def test_without_landlock_other_programs_are_refused(folder: Path) -> None:
    before = looked_at(folder)
    said = inside("calls", lambda: subprocess.run(["rm", folder / "text"], check=False))
    assert "PermissionError: [Errno 13] under plan nothing is written" in said
    assert looked_at(folder) == before


def test_a_program_that_is_not_there_is_not_found() -> None:
    def act() -> None:
        for missing in ("no-such-program", "/no/such-program"):
            with pytest.raises(FileNotFoundError):
                subprocess.run([missing], check=False)

    assert not inside("calls", act)


@linux
def test_what_was_open_before_changes_nothing(kind: str, folder: Path) -> None:
    array = np.memmap(folder / "array.raw", dtype="int64", mode="r+")
    unnamed = tempfile.TemporaryFile("w+")  # noqa: SIM115
    unnamed.write("before ")
    unnamed.flush()
    file = open(folder / "text", "a+")  # noqa: SIM115
    file.write("buffered ")
    inner = os.open(folder, os.O_RDONLY)
    before = looked_at(folder)

    def act() -> None:
        file.write("and more")
        file.flush()
        assert (folder / "text").read_text() == "a text\nbuffered and more"
        unnamed.write("after")
        unnamed.seek(0)
        assert unnamed.read() == "before after"
        array[:] = 9
        array.flush()
        os.unlink("run", dir_fd=inner)
        assert not (folder / "run").exists()

    said = inside(kind, act)
    assert looked_at(folder) == before
    assert array.tolist() == [0, 1, 2, 3]
    os.close(inner)
    file.close()
    unnamed.seek(0)
    assert unnamed.read() == "before "
    assert not said, said


TRAIN = """
import atexit, os, shutil, sqlite3, subprocess, sys, threading
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file
from torch.utils.tensorboard import SummaryWriter
network = torch.nn.Linear(200, 200, device="cuda")
optimizer = torch.optim.Adam(network.parameters())
atexit.register(lambda: Path("text").unlink())

def step():
    optimizer.zero_grad()
    network(torch.ones(4, 200, device="cuda")).sum().backward()
    optimizer.step()

step()
with open("text", "wb") as file:
    torch.save({"network": network, "optimizer": optimizer.state_dict(), "at": torch.ones(3)}, file)
assert os.path.getsize("text") > 3 * 4 * 200 * 200
with open("text", "rb") as file:
    saved = torch.load(file, weights_only=False)
assert saved["at"].tolist() == [1, 1, 1] and saved["network"].weight.is_cuda
network.load_state_dict(saved["network"].state_dict())
torch.save(network.state_dict(), "model.pt", _use_new_zipfile_serialization=False)
network.load_state_dict(torch.load("model.pt", map_location="cpu"))
save_file({**network.state_dict(), "host": torch.ones(2)}, "text", {"by": "a test"})
read = load_file("text")
assert read["weight"].shape == (200, 200) and read["host"].tolist() == [1, 1]
step()
writer = SummaryWriter("sub/logs")
writer.add_scalar("loss", 1, 1)
writer.close()
assert os.listdir("sub/logs")
shutil.rmtree("sub")
try:
    step()
finally:
    shutil.rmtree("empty")
"""


@pytest.mark.parametrize("given", ["mounts", "landlock", "calls"])
def test_a_program_that_writes_is_planned(
    given: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    say_once.cache_clear()
    (folder / "train.py").write_text(TRAIN)
    monkeypatch.chdir(folder)
    monkeypatch.setenv(sandbox.CHOICE, given)
    before = looked_at(folder)
    assert plan(Program(("train.py",)), "t4").verdicts[0].run.steps == 3
    assert looked_at(folder) == before
    weaker = [line for line in caplog.messages if "no separate file system" in line]
    assert len(weaker) == (given != "mounts" or not system.LINUX)


@linux
@pytest.mark.parametrize("after", ["/", "/dev/shm", "the last"])
def test_where_mounting_fails_half_way_the_program_writes_to_copies(
    after: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = mounts._Tree.place

    def failing(tree: mounts._Tree, mount: mounts._Mount) -> None:
        place(tree, mount)
        if mount.path == after or (after == "the last" and mount is tree.mounts[-1]):
            raise PermissionError("no more mounts")

    monkeypatch.setattr(mounts._Tree, "place", failing)
    before = looked_at(folder)

    def act() -> None:
        assert os.listdir("/proc/self/fd")
        assert Path(__file__).exists()
        opened_to_write(folder)
        STRONG["native_code"](folder)
        removed(folder)

    said = inside("mounts", act)
    assert looked_at(folder) == before
    assert not said, said


@linux
def test_a_program_that_fills_the_memory_for_files_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "_room", lambda: 1 << 20)

    def train() -> None:
        (folder / "large").write_bytes(bytes(1 << 22))

    with pytest.raises(ad.UsageError, match=r"test_sandbox.py:\d+.*No space left.*kept in memory"):
        ad.plan(train, gpus="t4")  # type: ignore[operator]


def test_a_function_that_writes_is_planned(folder: Path) -> None:
    before = looked_at(folder)

    def train() -> None:
        network = torch.nn.Linear(3, 3, device="cuda")
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        for step in range(3):
            network(torch.ones(2, 3, device="cuda")).sum().backward()
            optimizer.step()
            torch.save(network, folder / "text")
            shutil.rmtree(folder / "sub", ignore_errors=True)
            (folder / f"step{step}").touch()

    assert ad.plan(train, gpus=["t4", "l4"]).fits  # type: ignore[operator]
    assert looked_at(folder) == before


@linux
def test_a_stopped_function_ends_its_finally_blocks() -> None:
    ended = torch.zeros(1).share_memory_()  # memory, not a file: the one way out of a plan

    def train() -> None:
        network = torch.nn.Linear(3, 3, device="cuda")
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        try:
            while True:
                network(torch.ones(2, 3, device="cuda")).sum().backward()
                optimizer.step()
        finally:
            ended.fill_(1)

    assert ad.plan(train, gpus="t4").fits  # type: ignore[operator]
    assert ended.item() == 1


def test_what_another_process_has_copied_and_changed_stays(tmp_path: Path) -> None:
    copies, folder = Copies(str(tmp_path / "copies")), tmp_path / "folder"
    folder.mkdir()
    (folder / "text").write_text("real")
    (folder / "link").symlink_to("text")
    Path(copies.root + str(tmp_path)).mkdir(parents=True)
    for _ in range(2):  # as two workers do that both find no copy
        for path in (folder, folder / "text", folder / "link"):
            copies.copy(str(path), copies.root + str(path))
        assert Path(copies.root + str(folder / "link")).readlink() == Path("text")
        Path(copies.root + str(folder / "text")).write_text("changed")
    copies.copy(str(folder / "text"), copies.root + str(folder / "text"))
    assert Path(copies.root + str(folder / "text")).read_text() == "changed"
    assert os.listdir(copies.root) == [tmp_path.parts[1]]  # nothing half-made
