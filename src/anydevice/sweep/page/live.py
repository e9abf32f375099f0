"""The report of a sweep at work: served to this machine alone, and made anew as it grows."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from anydevice.errors import UsageError
from anydevice.sweep.page.page import report_page
from anydevice.sweep.records.records import RUNS, SWEEP, read_sheet

HOST = "127.0.0.1"
FRAME = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>anydevice</title>
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<style>html, body { height: 100%; margin: 0; } iframe { border: 0; width: 100%; height: 100%;
display: block; }</style></head>
<body><iframe id="report" src="/report" title="Report"></iframe><script>
let seen = null;
async function look() {
  try {
    const stamp = await (await fetch("/stamp")).text();
    const page = document.getElementById("report").contentWindow;
    if (seen !== null && stamp !== seen) page.location.reload();
    document.title = page.document.title || "anydevice";
    seen = stamp;
  } catch { document.title = "anydevice (stopped)"; }
  setTimeout(look, 2000);
}
look();
</script></body></html>
"""


def live_server(folder: str | Path, port: int = 0) -> ThreadingHTTPServer:
    """A server of a sweep's report, for this machine alone; `serve_forever()` starts it.

    Args:
        folder: The folder of a sweep.
        port: The port; 0 for any that is free.

    Raises:
        UsageError: If the folder is not that of a sweep, or the port is taken.

    Example:
        >>> with live_server("runs/reported") as server:
        ...     print(server.server_address[0])
        127.0.0.1
    """
    folder = Path(folder).absolute()
    read_sheet(folder)
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Answers, folder))
    except (OSError, OverflowError) as error:
        raise UsageError(f"expected a port that is free, got {port} ({error}).") from error
    server.daemon_threads = True
    return server


def stamp(folder: Path) -> str:
    """Changes when a record does."""
    newest, count = 0, 0
    for path in (folder / SWEEP, *_records(folder)):
        with suppress(OSError):
            newest, count = max(newest, path.stat().st_mtime_ns), count + 1
    return f"{newest} {count}"


def _records(folder: Path) -> list[Path]:
    try:
        keys = os.listdir(folder / RUNS)
    except OSError:
        return []
    return [folder / RUNS / key / "record.json" for key in keys]


class _Answers(BaseHTTPRequestHandler):
    """Three pages, and none to a name that is not this machine's: another site could ask by one."""

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self.folder = folder
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer one of the three pages."""
        server = cast(ThreadingHTTPServer, self.server)
        port = server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self.send_error(403)
        pages: dict[str, tuple[str, Callable[[], bytes]]] = {
            "/": ("text/html; charset=utf-8", lambda: FRAME),
            "/report": ("text/html; charset=utf-8", lambda: report_page(self.folder)),
            "/stamp": ("text/plain", lambda: stamp(self.folder).encode()),
        }
        if self.path not in pages:
            return self.send_error(404)
        kind, make = pages[self.path]
        try:
            content = make()
        except (OSError, UsageError) as error:
            return self.send_error(500, str(error).encode("ascii", "replace").decode()[:200])
        self.send_response(200)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged."""
