"""Building the native library: what cannot be says what to do, and the cache does not grow."""

import os
import subprocess
import sys
import time

import pytest

from anydevice.virtual import build


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
