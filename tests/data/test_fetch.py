import errno
import gzip
import hashlib
import http.client
import importlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tests.forked import Process

import anydevice as ad
from anydevice.data.family import FILES

fetching = importlib.import_module("anydevice.data.fetch")
CONTENT = np.random.default_rng(0).bytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Files by path, and how to go wrong: `faults` holds one word for each request to come."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.faults: list[str] = []
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is part of a test."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None: ...

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers["Range"]
        server.asked.append((self.path, asked))
        fault = server.faults.pop(0) if server.faults else ""
        content = server.files.get(self.path)
        if fault.isdigit():
            return self.send_error(int(fault))
        if fault == "redirect":
            self.send_response(302)
            self.send_header("Location", "/file")
            return self.end_headers()
        if content is None:
            return self.send_error(404)
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        same = self.headers["If-Range"] in (None, tag)
        begin = int(re.findall(r"\d+", asked)[0]) if asked and server.ranges and same else 0
        if begin >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            return self.end_headers()
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        rest = content[begin:]
        if fault in ("drop", "stall"):
            self.wfile.write(rest[: len(rest) // 2])
            if fault == "stall":
                time.sleep(1)
        else:
            self.wfile.write(rest)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("ANYDEVICE_DATA_MIRROR", raising=False)
    monkeypatch.setattr(fetching, "PAUSE", 0.01)
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def get(server: Server, folder: Path, checksum: str | None = MD5, path: str = "/file") -> bytes:
    return fetching.fetch(folder / "file", [server.address + path], checksum).read_bytes()


def test_a_file_comes_whole_and_is_not_asked_for_twice(server, tmp_path) -> None:
    assert get(server, tmp_path) == get(server, tmp_path) == CONTENT
    assert len(server.asked) == 1
    assert not (tmp_path / "file.part").exists()


@pytest.mark.parametrize("checksum", [MD5, None])
def test_a_broken_connection_is_resumed_where_it_broke(server, tmp_path, checksum) -> None:
    server.faults = ["drop", "drop", "503"]
    assert get(server, tmp_path, checksum) == CONTENT
    assert [asked for _, asked in server.asked] == [
        None, "bytes=150000-", "bytes=225000-", "bytes=225000-"
    ]  # fmt: skip


def test_a_server_that_ignores_ranges_is_read_from_the_start(server, tmp_path) -> None:
    server.faults, server.ranges = ["drop"], False
    assert get(server, tmp_path) == CONTENT


def test_a_server_that_stalls_is_asked_again(server, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT", 0.2)
    server.faults = ["stall"]
    assert get(server, tmp_path) == CONTENT


def test_a_network_that_goes_away_is_not_the_disks_fault(server, tmp_path, monkeypatch) -> None:
    read = http.client.HTTPResponse.read1
    errors = [OSError(errno.EHOSTUNREACH, "No route to host")]

    def unsteady(answer: http.client.HTTPResponse, size: int) -> bytes:
        if errors:
            raise errors.pop()
        return read(answer, size)

    monkeypatch.setattr(http.client.HTTPResponse, "read1", unsteady)
    assert get(server, tmp_path) == CONTENT
    assert len(server.asked) == 2


def test_a_redirect_is_followed(server, tmp_path) -> None:
    server.faults = ["redirect"]
    assert get(server, tmp_path, path="/elsewhere") == CONTENT


@pytest.mark.parametrize("part", [CONTENT[:1000], b"of another file", CONTENT, CONTENT + b"more"])
def test_what_an_earlier_process_left_is_used_if_it_is_right(server, tmp_path, part) -> None:
    (tmp_path / "file.part").write_bytes(part)
    assert get(server, tmp_path) == CONTENT
    assert server.asked[0][1] == f"bytes={len(part)}-"


def test_without_a_checksum_a_part_of_before_is_not_trusted(server, tmp_path) -> None:
    (tmp_path / "file.part").write_bytes(b"of another file")
    assert get(server, tmp_path, checksum=None) == CONTENT


def test_a_missing_file_and_wrong_bytes_are_said_for_each_address(server, tmp_path) -> None:
    server.files["/wrong"] = b"wrong"
    addresses = [f"{server.address}/missing", f"{server.address}/wrong"]
    with pytest.raises(ad.data.DownloadFailed, match="404 Not Found") as error:
        fetching.fetch(tmp_path / "file", addresses, MD5)
    received = hashlib.md5(b"wrong").hexdigest()
    assert f"expected md5 {MD5}, received {received}" in str(error.value)
    assert not list(tmp_path.glob("file*"))[1:]
    assert not (tmp_path / "file").exists()
    assert fetching.fetch(tmp_path / "file", [*addresses, f"{server.address}/file"], MD5).exists()


def test_an_address_that_keeps_failing_is_given_up(server, tmp_path) -> None:
    server.faults = ["503"] * 10
    with pytest.raises(ad.data.DownloadFailed, match=r"503 .*tried 3 times"):
        get(server, tmp_path)
    assert len(server.asked) == 3


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path) -> None:
    (tmp_path / "folder").write_text("a file in the way")
    with pytest.raises(ad.data.DownloadFailed, match=r"folder/file cannot be written"):
        get(server, tmp_path / "folder")


def test_a_full_disk_is_said_and_leaves_no_file(server, tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching.os, "fsync", full)
    with pytest.raises(ad.data.DownloadFailed, match="No space left on device"):
        get(server, tmp_path)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(("address", "checksum"), [("ftp://x/y", None), ("http://x/y", "abc")])
def test_wrong_addresses_and_checksums_are_wrong_use(tmp_path, address, checksum) -> None:
    with pytest.raises(ad.UsageError, match="expected"):
        fetching.fetch(tmp_path / "file", [address], checksum)


def test_two_processes_download_once(server, tmp_path) -> None:
    code = (
        "import sys; from pathlib import Path; from anydevice.data.fetch import fetch\n"
        "fetch(Path(sys.argv[1]), [sys.argv[2]], sys.argv[3])"
    )
    words = ("-c", code, tmp_path / "file", f"{server.address}/file", MD5)
    running = [Process(*words) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    assert len(server.asked) == 1


def test_a_mirror_is_a_served_data_folder_and_is_checked(server, tmp_path, monkeypatch) -> None:
    pair = np.zeros((2, 28, 28), np.uint8)
    raw = [
        b"\0\0\x08\3\0\0\0\2\0\0\0\x1c\0\0\0\x1c" + pair.tobytes(),
        b"\0\0\x08\1\0\0\0\2\0\1",
    ] * 2
    zipped = {name: gzip.compress(file) for name, file in zip(FILES, raw, strict=True)}
    server.files = {f"/MNIST/raw/{name}.gz": file for name, file in zipped.items()}
    monkeypatch.setenv("ANYDEVICE_DATA_MIRROR", f"{server.address}/none, {server.address}")
    with pytest.raises(ad.data.DownloadFailed, match="expected md5 f68b3c2d"):
        ad.data.mnist(tmp_path, address=f"{server.address}/MNIST/raw")
    sums = {name: hashlib.sha256(file).hexdigest() for name, file in zipped.items()}
    train, _ = ad.data.idx(tmp_path, f"{server.address}/MNIST/raw/", checksums=sums)
    assert train.labels.tolist() == [0, 1]
    family = importlib.import_module("anydevice.data.family")
    md5 = tuple(hashlib.md5(file).hexdigest() for file in zipped.values())
    own = family._Family("MNIST", (), md5, tuple("01"))
    train, test = family._load(own, tmp_path / "own", None)
    assert (tmp_path / "own/MNIST/raw" / f"{FILES[0]}.gz").exists()
    assert test.classes == ("0", "1")
    assert ("/none/MNIST/raw/" + FILES[0] + ".gz", None) in server.asked
