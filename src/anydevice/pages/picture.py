"""A PNG of a page, taken by a Chromium that is on this machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from anydevice.errors import UsageError
from anydevice.files import write_whole

BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "microsoft-edge", "brave-browser",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)  # fmt: skip
FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--force-device-scale-factor=2", "--virtual-time-budget=2000",
)  # fmt: skip
PATIENCE = 120  # seconds; a busy machine starts a browser slowly


def browser() -> str | None:
    """The first Chromium on this machine, of any brand; None if there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def take_picture(page: bytes, output: Path, size: tuple[int, int], fragment: str = "") -> None:
    """Writes what the page looks like in a window of this size, in light colours, to a PNG."""
    program = browser()
    if program is None:
        raise UsageError(
            "expected a Chromium or Chrome, which draws the PNG, got none on this machine: install "
            "one (`apt-get install chromium`), or leave --png out and open the page itself."
        )
    with TemporaryDirectory(prefix="anydevice-") as place:
        file, picture = Path(place, "page.html"), Path(place, "picture.png")
        file.write_bytes(page)
        command = [
            program, *FLAGS, f"--user-data-dir={place}/profile", f"--screenshot={picture}",
            f"--window-size={size[0]},{size[1]}", f"{file.as_uri()}#{fragment}",
        ]  # fmt: skip
        if sys.platform == "linux" and os.geteuid() == 0:  # its sandbox refuses root
            command.insert(1, "--no-sandbox")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            last = done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired:
            last = [f"it took longer than {PATIENCE} s"]
        if not picture.exists():
            reason = last[0] if last else "it printed no reason"
            raise OSError(f"{program} took no picture of the page: {reason}")
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, picture.read_bytes())
