"""The frame of every page: users' texts stay text, no network, figures as Python writes them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from anydevice.pages.frame import embedded, page
from anydevice.text import duration_text, size_text
from tests.browsing import Browser, browsing
from tests.test_text import DURATIONS

EVIL = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>"
SIZES = (0, 1023, 1536, 5 * 2**20, 7 * 2**30 + 2**29)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def test_a_page_cannot_reach_the_network_even_if_it_wanted_to(
    browser: Browser, tmp_path: Path
) -> None:
    script = "fetch('http://127.0.0.1:9/').catch(() => { document.title = 'refused'; });"
    (tmp_path / "page.html").write_bytes(page("wants out", "", scripts=[script]))
    browser.open(tmp_path / "page.html")
    browser.wait("return document.title === 'refused'")
    assert any("Content Security Policy" in line for line in browser.complaints())


def test_what_users_wrote_is_text(browser: Browser, tmp_path: Path) -> None:
    script = "document.body.append(JSON.parse(document.getElementById('data').textContent)[0]);"
    (tmp_path / "page.html").write_bytes(page(EVIL, "", data=[EVIL], scripts=[script]))
    browser.open(tmp_path / "page.html")
    assert browser.run("return document.title") == EVIL
    assert EVIL in browser.texts("body")[0]
    assert browser.run("return document.images.length") == 0
    assert not browser.complaints()


def test_json_in_a_page_cannot_end_its_element() -> None:
    text = {"</script>": ["<!--", "\u2028", "\ud800"]}
    assert "<" not in embedded(text)
    assert json.loads(embedded(text)) == text


def test_a_page_writes_figures_as_python_does(browser: Browser, tmp_path: Path) -> None:
    script = f"""
        document.body.append(JSON.stringify({{
            durations: {json.dumps(list(DURATIONS))}.map(duration),
            sizes: {json.dumps(SIZES)}.map(bytes),
        }}));
    """
    (tmp_path / "page.html").write_bytes(page("figures", "<p></p>", scripts=[script]))
    browser.open(tmp_path / "page.html")
    shown = json.loads(str(browser.run("return document.body.lastChild.textContent")))
    assert shown["durations"] == [duration_text(seconds) for seconds in DURATIONS]
    assert shown["sizes"] == [size_text(size) for size in SIZES]
