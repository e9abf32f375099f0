"""The check of the C++ sources: what it refuses, on sources planted for it."""

import shutil

import pytest

from anydevice.virtual import build
from tests import native_lint

DEFINES = (
    "namespace {\nint answer() { return 42; }\n}  // namespace\nint a() { return answer(); }\n"
)
USES = '#include "anydevice.h"\nint b() { return answer(); }\n'


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A library of two files, of which the second uses what only the first defines."""
    folder = tmp_path / "native"
    folder.mkdir()
    (folder / "anydevice.h").write_text("#pragma once\n\n#include <vector>\n")
    (folder / "a.cpp").write_text(DEFINES)
    (folder / "b.cpp").write_text(USES)
    monkeypatch.setattr(build, "NATIVE", folder)
    monkeypatch.setattr(native_lint, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(native_lint, "verdicts", lambda: tmp_path / "clean.json")
    native_lint.content.cache_clear()
    yield folder
    native_lint.content.cache_clear()


def repair(sources):
    (sources / "b.cpp").write_text('#include "anydevice.h"\nint b() { return 42; }\n')
    native_lint.content.cache_clear()


@pytest.mark.parametrize("compiler", native_lint.COMPILERS)
def test_a_file_that_uses_another_without_a_header_is_refused(compiler, sources):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    files = native_lint.native_files("*.cpp")
    [complaint] = native_lint.alone(compiler, files)
    assert "answer" in complaint
    assert [native_lint.is_clean(compiler, file) for file in files] == [True, False]
    repair(sources)
    assert native_lint.alone(compiler, files) == []
    assert native_lint.is_clean(compiler, sources / "b.cpp")


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_units_in_reverse_order_refuse_it_too(sources):
    [complaint] = native_lint.in_reverse_order()
    assert "answer" in complaint
    assert not native_lint.is_clean(native_lint.REVERSED, sources / "a.cpp")
    repair(sources)
    assert native_lint.in_reverse_order() == []
    assert native_lint.is_clean(native_lint.REVERSED, sources / "a.cpp")


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_a_warning_is_refused(sources):
    repair(sources)
    (sources / "a.cpp").write_text("int a(int x) {\n  int y;\n  return 1;\n}\n")
    native_lint.content.cache_clear()
    [complaint] = native_lint.alone("g++", [sources / "a.cpp"])
    assert "unused variable" in complaint
    assert "unused parameter" in complaint


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_a_header_that_changes_is_a_change_of_the_files_that_include_it(sources):
    repair(sources)
    files = native_lint.native_files("*.cpp")
    assert native_lint.alone("g++", files) == []
    (sources / "anydevice.h").write_text("#pragma once\n\n#include <vector>\n\nint more();\n")
    native_lint.content.cache_clear()
    assert [native_lint.is_clean("g++", file) for file in files] == [True, False]


def test_another_format_is_refused(sources):
    if native_lint.formatter() is None:
        pytest.skip(f"no clang-format {native_lint.FORMATTER}")
    (sources / ".clang-format").write_text("BasedOnStyle: Google\n")
    assert native_lint.formatted([sources / "b.cpp"])
    (sources / "b.cpp").write_text("int  b( ) {return 42;}\n")
    assert not native_lint.formatted([sources / "b.cpp"])
