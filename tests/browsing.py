"""A real Chromium that looks at a page: what it shows, logs, and asks the network for."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip
PATIENCE = 120


class Browser:
    """A window of Chromium."""

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))
        self.driver.set_page_load_timeout(PATIENCE)

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Shows a file in a window of this width."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        self.driver.get_log("browser"), self.driver.get_log("performance")
        self.driver.get(path.as_uri())

    def run(self, script: str, *arguments: object) -> object:
        """The value of some JavaScript."""
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        """What the elements that match say."""
        elements = "[...document.querySelectorAll(arguments[0])]"
        found = self.run(f"return {elements}.map(e => e.textContent.toWellFormed())", selector)
        assert isinstance(found, list)
        return found

    def wait(self, script: str, *arguments: object) -> None:
        """Waits until some JavaScript is true."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, PATIENCE).until(lambda _: self.run(script, *arguments))

    def click(self, selector: str) -> None:
        """Clicks as somebody with a mouse does, or fails if it is covered."""
        self.driver.find_element("css selector", selector).click()

    def complaints(self) -> list[str]:
        """What the console got."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def asked(self) -> list[str]:
        """The addresses that the page asked for, itself among them."""
        entries = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        requests = [e["message"] for e in entries if e["message"]["method"] == SENT]
        return [request["params"]["request"]["url"] for request in requests]


SENT = "Network.requestWillBeSent"


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser for a block of tests; skips them, with the reason, where there is none."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: `make browser` installs them on Debian")
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.driver.quit()
