"""The cache: nobody else may write to it, and a damaged library is built again."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from anydevice.devices.catalogue import card
from anydevice.errors import UsageError
from anydevice.files import locked
from anydevice.plan.time import rates
from anydevice.virtual import build, cache, ops

NOBODY = "65534"
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
USE = "import anydevice as ad; ad.virtual.enable(1); print('enabled')"


def can_be_nobody():
    """Whether another user can be had, who can run this Python."""
    command = [*AS_NOBODY, sys.executable, "-c", "import anydevice, torch"]
    return os.geteuid() == 0 and shutil.which("setpriv") and subprocess.run(command).returncode == 0


@pytest.fixture(scope="module")
def nobody():
    if not can_be_nobody():
        pytest.skip("another user needs root and setpriv, and a Python that he can run")


@pytest.fixture
def shared():
    """A folder for everybody, like /tmp; pytest's are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


@pytest.fixture(scope="module")
def built():
    return build.library()


@pytest.fixture
def filled(built, tmp_path, monkeypatch):
    """A copy of the library, in a cache that a test may damage."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return fill(tmp_path, built)


def fill(folder, built):
    (folder / "anydevice").mkdir(mode=0o755)
    shutil.copytree(built.parent, folder / "anydevice" / built.parent.name)
    return folder / "anydevice" / built.parent.name / built.name


@pytest.fixture
def rebuilt(built, monkeypatch):
    """The libraries that are built; they are copied, to save time."""
    listed = []

    def copy(path):
        listed.append(path)
        shutil.copy(built, path)
        build._write_down(path)

    monkeypatch.setattr(build, "_build", copy)
    return listed


def run(*command, folder):
    return subprocess.run(
        command,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


# ---- damage


@pytest.mark.parametrize("left", [0, 1000, -1])
def test_a_damaged_library_is_built_again(left, filled, rebuilt):
    content = filled.read_bytes()
    assert build.library() == filled
    assert not rebuilt
    filled.write_bytes(content[:left])
    assert build.library() == filled
    assert rebuilt == [filled]
    assert filled.read_bytes() == content


def test_one_bit_is_damage(filled, rebuilt):
    content = bytearray(filled.read_bytes())
    content[len(content) // 2] ^= 1
    filled.write_bytes(content)
    build.library()
    assert rebuilt == [filled]


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"bytes": 1}'])
def test_a_library_without_its_checksum_is_built_again(text, filled, rebuilt):
    record = build._record(filled.parent)
    record.unlink() if text is None else record.write_text(text)
    build.library()
    assert rebuilt == [filled]
    build.library()
    assert rebuilt == [filled]


# ---- other people


def test_a_library_that_somebody_else_planted_is_refused(nobody, shared):
    planted = shared / "anydevice" / build._key() / build.LIBRARY
    run(*AS_NOBODY, "mkdir", "-p", planted.parent, folder=shared)
    run(*AS_NOBODY, "touch", planted, folder=shared)
    done = run(sys.executable, "-c", USE, folder=shared)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"expected {shared}/anydevice to belong to you or to root, since code in it is run; "
        f"it belongs to nobody: {cache.FIX}"
    )


@pytest.mark.parametrize("part", ["folder", "library", "record", "link"])
def test_each_part_of_the_cache_belongs_to_this_user(part, nobody, filled):
    parts = {"folder": filled.parent, "library": filled, "record": build._record(filled.parent)}
    if part == "link":
        parts[part] = filled.parent / "ops-link.txt"
        parts[part].symlink_to(filled)
    os.chown(parts[part], int(NOBODY), int(NOBODY), follow_symlinks=False)
    with pytest.raises(UsageError, match=re.escape(f"expected {parts[part]} to belong to you")):
        build.library()


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
@pytest.mark.parametrize("part", ["cache", "folder", "library"])
def test_others_may_write_to_no_part_of_the_cache(part, mode, filled):
    parts = {"cache": filled.parents[1], "folder": filled.parent, "library": filled}
    parts[part].chmod(mode)
    with pytest.raises(UsageError, match=re.escape(f"only its owner can write to {parts[part]}, ")):
        build.library()


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_folder_above_in_which_others_can_rename_is_refused(mode, tmp_path, monkeypatch):
    above = tmp_path / "above"
    (above / "mine").mkdir(parents=True)
    above.chmod(mode)
    linked = tmp_path / "linked"
    linked.symlink_to(above / "mine")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "anydevice").symlink_to(above / "mine")
    for chosen in (above, above / "mine", linked, tmp_path / "own"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(chosen))
        with pytest.raises(UsageError, match=re.escape(f"can replace, got one in {above}, ")):
            cache.folder("torch")
    above.chmod(mode | 0o1000)
    assert cache.folder("torch").is_dir()


def test_a_folder_above_that_a_group_can_write_to(nobody, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tmp_path.chmod(0o775)
    cache.folder("torch")  # the group is this user's own
    os.chown(tmp_path, -1, int(NOBODY))
    with pytest.raises(UsageError, match="permissions drwxrwxr-x"):
        cache.folder("torch")


def test_a_folder_above_of_somebody_else(nobody, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs" / "cache"))
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", int(NOBODY), int(NOBODY))
    with pytest.raises(UsageError, match=r"/theirs, which belongs to nobody and has"):
        cache.folder("torch")
    monkeypatch.setattr(cache, "_outside", lambda: {int(NOBODY)})
    cache.folder("torch")


@pytest.mark.long
def test_a_cache_that_root_filled_is_for_everybody(nobody, shared, built):
    library = fill(shared, built)
    done = run(*AS_NOBODY, sys.executable, "-c", USE, folder=shared)
    assert done.stdout == "enabled\n", done.stderr
    library.write_bytes(b"")
    done = run(*AS_NOBODY, sys.executable, "-c", USE, folder=shared)
    assert "cannot be kept ([Errno 13] Permission denied" in done.stderr.splitlines()[-1]


def test_what_is_kept_only_its_owner_can_write(tmp_path, rebuilt, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0o002)
    try:
        library = build.library()
        ops.kept_op_list(library.parent)
        rates.store(card("t4"), {}, "a card")
    finally:
        os.umask(before)
    kept = [*tmp_path.rglob("*")]
    assert len(kept) == 8  # cache, its two folders, library, record, lock, ops, rates
    assert not [path for path in kept if path.stat().st_mode & 0o022]
    assert build.library() == library


def test_a_link_in_the_place_of_the_lock_is_not_followed(filled, tmp_path):
    filled.unlink()
    precious = tmp_path / "precious"
    (filled.parent / build.LOCK).unlink(missing_ok=True)
    (filled.parent / build.LOCK).symlink_to(precious)
    with pytest.raises(build.BuildError, match="Too many levels of symbolic links"):
        build.library()
    assert not precious.exists()


def test_no_home_is_a_sentence(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(UsageError, match=r"got no HOME.*set XDG_CACHE_HOME"):
        build.library()


def test_no_home_and_no_user(nobody):
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    environment.pop("XDG_CACHE_HOME", None)
    command = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", sys.executable]
    done = subprocess.run(
        [*command, "-m", "anydevice.virtual.build"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "got no HOME and a user without one" in done.stderr
    assert "Traceback" not in done.stderr


# ---- removing


def other(library, name, **made):
    """The library of another build, as its record says; by default of this torch and package."""
    here = {"torch": str(build._torch()), "version": build.torch_version()}
    made = here | {"anydevice": str(build.NATIVE)} | made
    shutil.copytree(library.parent, library.parents[1] / name)
    record = build._record(library.parents[1] / name)
    record.write_text(json.dumps({**json.loads(record.read_text()), **made}))


def test_clean_removes_what_nothing_can_load(filled, tmp_path):
    other(filled, "torch-9.9-a", version="9.9")
    other(filled, "torch-9.9-b", torch=str(tmp_path / "gone"))
    other(filled, "torch-9.9-c", anydevice=str(tmp_path / "gone"))
    other(filled, "torch-9.9-d", anydevice=str(build.NATIVE))
    other(filled, "torch-9.9-another", anydevice=str(tmp_path))  # of another environment
    release = build.torch_version().split("+")[0]
    other(filled, "torch-9.9-release", version=release, anydevice=str(tmp_path))
    (filled.parents[1] / "torch-9.9-e").mkdir()
    (filled.parents[1] / "rates").mkdir()
    done = run(sys.executable, "-m", "anydevice.virtual.build", "--clean", folder=tmp_path)
    assert done.stderr == ""
    left = {folder.name for folder in filled.parents[1].iterdir()}
    assert left == {filled.parent.name, "torch-9.9-another", "torch-9.9-release", "rates"}
    *removed, last = done.stdout.splitlines()
    assert len(removed) == 5
    assert f"{filled.parents[1]}/torch-9.9-a: there is no torch 9.9 in" in done.stdout
    assert last == f"5 removed from {filled.parents[1]}"


def test_clean_leaves_a_library_that_is_being_built(filled):
    other(filled, "torch-9.9-a", version="9.9")
    folder = filled.parents[1] / "torch-9.9-a"
    with locked(folder / build.LOCK):
        assert build.clean() == []
    assert [removed for removed, _ in build.clean()] == [folder]


def test_another_argument_is_a_sentence(tmp_path):
    done = run(sys.executable, "-m", "anydevice.virtual.build", "--clear", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "anydevice: expected --ready, --clean or nothing, got --clear.\n"
