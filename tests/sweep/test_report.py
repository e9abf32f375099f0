"""The page in a real browser: what it shows, and that it does so without a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anydevice.sweep.grid import grid
from anydevice.sweep.report import report
from tests.browsing import Browser, browsing
from tests.sweep.synthetic import make_sweep

ROWS = "#runs tbody tr"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "first"
    runs = grid(lr=[0.001, 0.01], batch_size=[64, 256, 1024], device=["virtual", "cpu"])
    make_sweep(folder, runs, failing=0.2)
    return report(folder)


def column(browser: Browser, name: str) -> list[str]:
    place = browser.texts("#runs th").index(name) + 1
    return browser.texts(f"{ROWS} td:nth-child({place})")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_shows_itself_without_a_complaint_or_a_network(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert len(browser.texts(ROWS)) == 12
    assert browser.run("return document.documentElement.scrollWidth") == width
    assert browser.complaints() == []
    assert [url for url in browser.asked() if not url.startswith("data:")] == [page.as_uri()]


def test_a_column_sorts_up_and_down(browser: Browser, page: Path) -> None:
    browser.open(page)
    button = "#runs th:nth-child(3) button"
    for way in ("ascending", "descending"):
        browser.click(button)
        assert browser.run("return document.querySelector('#runs [aria-sort]').ariaSort") == way
        losses = [float(text) for text in column(browser, "loss")]
        assert losses == sorted(losses, reverse=way == "descending")
