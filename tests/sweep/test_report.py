"""The page in a real browser: what it shows and what can be done with it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Keys

from anydevice.sweep.grid import grid
from anydevice.sweep.page.data import page_data
from anydevice.sweep.page.page import page_of, report
from anydevice.sweep.records.claims import claim
from anydevice.sweep.records.records import RECORD, RUNS, SWEEP, Record, write
from tests.browsing import Browser, browsing
from tests.sweep.synthetic import make_record, make_sweep

ROWS = "#runs tbody tr"
LINES = "#curves .plot g:first-of-type .line"
DOTS = "#durations .plot path[data-run]"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve runs on the CPU and a virtual GPU, one of them failed."""
    folder = tmp_path_factory.mktemp("sweeps") / "first"
    runs = grid(lr=[0.001, 0.01], batch_size=[64, 256, 1024], device=["virtual", "cpu"])
    make_sweep(folder, runs, failed=[runs[3]])
    return report(folder)


def shown(browser: Browser, name: str) -> list[str]:
    """A column of the table."""
    place = browser.texts("#runs th").index(name) + 1
    return browser.texts(f"{ROWS} td:nth-child({place})")


def head(browser: Browser, name: str) -> str:
    place = browser.texts("#runs th").index(name) + 1
    return f"#runs th:nth-child({place}) button"


def find(browser: Browser, words: str) -> None:
    field = browser.driver.find_element("id", "filter")
    field.clear()
    field.send_keys(words)
    browser.wait("return document.getElementById('filter').value === arguments[0]", words)


def write_page(path: Path, records: Sequence[Record], **words: str) -> Path:
    """A page of records that need not be on the disk."""
    words = {"title": "made up", "made": "now", "version": "0"} | words
    path.write_bytes(page_of({**page_data(records), **words}))
    return path


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_shows_itself_without_a_complaint_or_a_network(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert len(browser.texts(ROWS)) == 12
    assert browser.run("return document.documentElement.scrollWidth") == width
    light = browser.run("return getComputedStyle(document.body).color") == "rgb(27, 30, 35)"
    assert light != dark
    assert browser.complaints() == []
    assert [url for url in browser.asked() if not url.startswith("data:")] == [page.as_uri()]


def test_a_column_sorts_to_and_fro(browser: Browser, page: Path) -> None:
    browser.open(page)
    for name, ways in (("loss", ["ascending", "descending"]), ("accuracy", ["descending"])):
        for way in ways:
            browser.click(head(browser, name))
            assert browser.run("return document.querySelector('[aria-sort]').ariaSort") == way
            values = [float(text) for text in shown(browser, name)]
            assert values == sorted(values, reverse=way == "descending")


def test_the_best_of_each_device_is_marked(browser: Browser, page: Path) -> None:
    browser.open(page)
    stars = browser.texts("#runs .star")
    assert len(stars) == 2
    best = {}
    for device, accuracy, first in zip(
        shown(browser, "ran on"), shown(browser, "val_accuracy"), shown(browser, "run"), strict=True
    ):
        if "failed" not in first:
            best[device] = max(best.get(device, (0.0, "")), (float(accuracy), first))
    assert all("★" in first for _, first in best.values())


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("batch_size=64", 4),
        ("lr<0.005 batch_size>=256", 4),
        ("device!=cpu", 6),
        ("tesla", 6),
        ("state=failed", 1),
        ("nothing-of-the-kind", 0),
    ],
)
def test_words_filter_the_table_and_the_pictures(
    browser: Browser, page: Path, words: str, left: int
) -> None:
    browser.open(page)
    find(browser, words)
    assert len(browser.texts(ROWS)) == left
    assert len(browser.texts(LINES)) == left
    assert len(browser.texts(DOTS)) == left
    assert browser.texts("#shown") == [f"{left} of 12 runs"]
    assert browser.complaints() == []


def test_a_parameters_values_filter_too(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click("#groups fieldset:nth-child(2) button:nth-of-type(1)")
    assert set(shown(browser, "batch_size")) == {"64"}
    browser.click("#groups fieldset:nth-child(2) button:nth-of-type(2)")
    assert set(shown(browser, "batch_size")) == {"64", "256"}
    for button in (1, 2):
        browser.click(f"#groups fieldset:nth-child(2) button:nth-of-type({button})")
    assert len(browser.texts(ROWS)) == 12


def test_a_pointer_over_a_curve_tells_its_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    find(browser, "run=5")
    line = browser.driver.find_element("css selector", LINES)
    ActionChains(browser.driver).move_to_element(line).perform()
    [said] = browser.texts(".tip:not([hidden])")
    assert said.startswith("Run 5")
    for told in ("val_accuracy", "epoch", "lr0.001", "batch_size1024"):
        assert told in said
    ActionChains(browser.driver).move_to_element(
        browser.driver.find_element("id", "title")
    ).perform()
    assert browser.texts(".tip:not([hidden])") == []


def test_the_keyboard_walks_along_curves_and_marks_a_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('#curves .plot svg').focus()")
    keys = ActionChains(browser.driver)
    keys.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    [first] = browser.texts(".tip:not([hidden]) b")
    assert "epoch2" in browser.texts(".tip")[0]
    keys.send_keys(Keys.ARROW_DOWN).perform()
    [second] = browser.texts(".tip:not([hidden]) b")
    assert second != first
    assert "epoch2" in browser.texts(".tip")[0]
    keys.send_keys(Keys.ENTER).perform()
    marked = browser.texts(f"{ROWS}.marked td:first-child button")
    assert [f"Run {marked[0]}"] == [second.removesuffix(" · failed")]


def test_dragging_along_an_axis_keeps_the_runs_that_pass_there(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    grip = browser.driver.find_element("css selector", "#parallel .grip")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", grip)
    half = grip.rect["height"] / 2
    drag = ActionChains(browser.driver).move_to_element_with_offset(grip, 0, int(half) - 4)
    drag.click_and_hold().move_by_offset(0, -40).release().perform()
    assert set(shown(browser, "lr")) == {"0.001"}
    browser.click("#unbrush")
    assert set(shown(browser, "lr")) == {"0.001", "0.01"}


def test_durations_on_virtual_gpus_are_marked(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert "not a GPU's speed" in browser.texts("#durations > .note")[0]
    assert "× the CPU" not in browser.texts("#durations table")[0]
    hollow = f"{DOTS}[fill='var(--surface)']"
    assert len(browser.texts(hollow)) == 6


def test_a_real_gpu_is_compared_with_the_cpu(browser: Browser, tmp_path: Path) -> None:
    make_sweep(tmp_path / "real", grid(batch_size=[100, 1000], device=["cuda", "cpu"]))
    browser.open(report(tmp_path / "real"))
    assert browser.texts("#durations table")[0].count("× the CPU") == 2
    assert "not a GPU's speed" not in browser.texts("#durations > .note")[0]


def test_failures_are_told_with_their_tracebacks(browser: Browser, page: Path) -> None:
    browser.open(page)
    [said] = browser.texts("#failures details")
    assert "CUDA out of memory" in said
    assert "run 4" in said
    assert "loss.backward()" in said


def test_texts_of_users_stay_texts(browser: Browser, tmp_path: Path) -> None:
    records = [
        make_record({"<script>alert(0)</script>": value, "lr": 0.1}, 3)
        for value in (EVIL, "<!--", "\u2028\ud800", ["a", {"b": EVIL}], None)
    ]
    evil = {"state": "failed", "error": EVIL, "device_name": EVIL, "host": EVIL}
    records[0] = Record(**{**vars(records[0]), **evil})
    for record in records:
        record.epochs[-1]["<i>figure</i>"] = 1.5
    words = {"title": EVIL, "made": EVIL, "version": EVIL}
    browser.open(write_page(tmp_path / "page.html", records, **words))
    assert len(browser.texts(ROWS)) == 5
    assert EVIL in shown(browser, "<script>alert(0)</script>")
    assert "<i>figure</i>" in browser.texts("#runs th")
    assert browser.texts("h1") == [EVIL]
    assert (
        browser.run("return document.querySelectorAll('img, script:not([type]), i.x').length") == 0
    )
    assert browser.complaints() == []


def test_what_is_damaged_is_named_and_the_rest_is_shown(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    runs = grid(lr=[0.1, 0.2, 0.3])
    make_sweep(folder, runs)
    (folder / RUNS / runs[1].key / RECORD).write_text('{"format": "anydevice run 1", "key"')
    browser.open(report(folder))
    assert len(browser.texts(ROWS)) == 2
    [said] = browser.texts("#damaged li")
    assert runs[1].key in said
    assert browser.complaints() == []


def test_a_damaged_sheet_is_named_and_the_runs_are_shown(browser: Browser, tmp_path: Path) -> None:
    make_sweep(tmp_path / "sheet", grid(lr=[0.1, 0.2]))
    (tmp_path / "sheet" / SWEEP).write_text("{")
    browser.open(report(tmp_path / "sheet"))
    assert len(browser.texts(ROWS)) == 2
    assert SWEEP in browser.texts("#damaged li")[0]


def test_a_run_that_nobody_works_at_was_interrupted(browser: Browser, tmp_path: Path) -> None:
    runs = grid(lr=[0.1, 0.2])
    make_sweep(tmp_path / "two", runs)
    for run in runs:
        record = make_record(run.parameters, 1)
        write(tmp_path / "two", Record(**{**vars(record), "state": "running"}))
    held = claim(tmp_path / "two", runs[1].key)
    browser.open(report(tmp_path / "two"))
    assert held is not None
    held.release()
    assert sorted(browser.texts("#runs .state")) == ["interrupted", "running"]


@pytest.mark.parametrize("count", [0, 1])
def test_a_sweep_of_one_run_or_none_is_a_page_too(
    browser: Browser, tmp_path: Path, count: int
) -> None:
    runs = grid(lr=[0.1])[:count]
    make_sweep(tmp_path / "small", runs)
    browser.open(report(tmp_path / "small"))
    assert len(browser.texts(ROWS)) == count
    assert browser.complaints() == []


def test_figures_that_are_no_numbers_do_not_spoil_the_pictures(
    browser: Browser, tmp_path: Path
) -> None:
    records = [make_record({"lr": lr}, 4) for lr in (0.1, 0.2, 0.3)]
    records[0].epochs[-1] |= {"loss": float("nan"), "val_accuracy": float("inf"), "note": "text"}
    records[1].epochs.clear()
    browser.open(write_page(tmp_path / "page.html", records))
    assert "NaN" in shown(browser, "loss")
    marks = "return [...document.querySelectorAll('svg')].map(e => e.outerHTML).join()"
    assert "NaN" not in str(browser.run(marks))
    assert browser.complaints() == []


def test_ten_thousand_runs_are_a_page_of_less_than_five_megabytes(
    browser: Browser, tmp_path: Path
) -> None:
    lr = [(1 + i) / 1e4 for i in range(1000)]
    runs = grid(lr=lr, batch_size=[64, 128, 256, 512, 1024], device=["cuda", "cpu"])
    records = [make_record(run.parameters, 10) for run in runs]
    path = write_page(tmp_path / "page.html", records)
    assert path.stat().st_size < 5_000_000
    browser.open(path)
    assert browser.texts("#shown") == ["10,000 runs"]
    assert "of 10,000 runs are drawn" in browser.texts("#parallel .note")[0]
    best = max(range(len(records)), key=lambda i: records[i].last["val_accuracy"])
    assert browser.texts(f"{ROWS}:first-child td:first-child button") == [str(best + 1)]
    drawn = browser.run(
        "return [...document.querySelectorAll(arguments[0])].map(e => +e.dataset.run)", LINES
    )
    assert isinstance(drawn, list)
    assert len(drawn) == 60
    assert best in drawn
    assert browser.complaints() == []
