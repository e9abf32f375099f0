"""The command: where it writes, what it says, the picture."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from anydevice import UsageError
from anydevice.pages import picture
from anydevice.sweep.grid import grid
from anydevice.sweep.page.page import report, report_picture
from tests.sweep.synthetic import make_sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_sweep(tmp_path / "first", grid(lr=[0.01, 0.1], device=["cuda", "cpu"]))
    return tmp_path / "first"


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anydevice", "report", *map(str, words)],
        capture_output=True,
        text=True,
    )


def test_the_page_lies_in_the_folder_or_where_it_is_wanted(folder: Path) -> None:
    done = command(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()) == folder / "report.html"
    elsewhere = folder.parent / "deep" / "page.html"
    assert command(folder, "-o", elsewhere).returncode == 0
    assert elsewhere.read_text().startswith("<!doctype html>")


def test_the_page_costs_no_torch_import(folder: Path) -> None:
    code = (
        "import sys; from anydevice.sweep.page.page import report\n"
        f"report({str(folder)!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_is_no_sweep_is_a_sentence(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "no sweep.json"), (tmp_path / "typo", "does not exist")):
        done = command(path)
        assert done.returncode == 2
        assert why in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_place_that_cannot_be_written_to_is_a_sentence(folder: Path) -> None:
    done = command(folder, "-o", folder)
    assert done.returncode == 1
    assert "could not be written (Is a directory): name another file." in done.stderr
    assert list(folder.glob(".unfinished*")) == []


@pytest.mark.skipif(picture.browser() is None, reason="needs a Chromium or Chrome")
def test_the_picture_is_a_png_of_twice_its_size(folder: Path) -> None:
    path = report_picture(folder, folder.parent / "pictures" / "first.png")
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", head[16:]) == (2400, 1060)


def test_a_picture_without_a_browser_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="apt-get install chromium"):
        report_picture(folder, folder / "first.png")
    assert report(folder).exists()


def test_a_browser_that_fails_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho starting >&2\necho no display >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(picture, "browser", lambda: str(broken))
    with pytest.raises(OSError, match="took no picture of the page: no display"):
        report_picture(folder, folder / "first.png")
