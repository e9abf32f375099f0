import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.browsing import browsing
from tests.forked import python

import anydevice as ad
from anydevice.bench import clock, suite, tasks
from anydevice.bench.findings import Findings, Place
from anydevice.bench.page import write_page
from anydevice.bench.tasks import Task
from anydevice.devices.catalogue import card
from anydevice.tables import plain_text


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tasks with little work."""
    monkeypatch.setattr(tasks, "MATMULS", (16, 32))
    monkeypatch.setattr(tasks, "PRODUCTS", (16, 32))
    monkeypatch.setattr(tasks, "CONVOLUTIONS", {"tiny": (2, 1, 2, 3, 8)})
    monkeypatch.setattr(tasks, "LARGE", 4 * tasks.SMALL)
    monkeypatch.setattr(clock, "ENOUGH", 0.0)
    monkeypatch.setattr(clock, "WARM_UP", 0.0)
    monkeypatch.setattr(clock, "_cache_size", lambda device: 2**20)


def task(kind: str, what: str = "", dtype: str = "float32") -> Task:
    return next(t for t in tasks.KINDS[kind]() if what in t.what and dtype == t.dtype)


def test_work_and_bytes_are_counted() -> None:
    matmul, product = task("matmul", "32"), task("product", "32", "float64")
    assert (matmul.operations, matmul.moved) == (2 * 32**3, 3 * 32 * 32 * 4)
    assert (product.operations, product.moved) == (32 * 32, 3 * 32 * 32 * 8)
    convolution = task("convolution")
    assert convolution.operations == 2 * 2 * 1 * 2 * 3 * 3 * 6 * 6
    assert convolution.moved == 4 * (2 * 8 * 8 + 2 * 3 * 3 + 2 * 2 * 6 * 6)


def test_the_operations_are_those_that_pytorch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    for kind in ("matmul", "convolution"):
        chosen = task(kind)
        work = chosen.make(torch.device("cpu"))
        with FlopCounterMode(display=False) as counter:
            work()
        assert counter.get_total_flops() == chosen.operations


def test_a_cpu_is_measured_at_every_kind_of_work_that_it_can_do() -> None:
    found = ad.bench(["cpu"])
    assert {f.kind for f in found.figures} == {"matmul", "product", "convolution"}
    for f in found.figures:
        assert 0 < f.low <= f.seconds <= f.high
        assert f.of_ceiling is None
        if f.kind == "matmul":
            side = int(f.what.removesuffix("²"))
            assert f.flops_per_second == pytest.approx(2 * side**3 / f.seconds)
    assert found.places[0].threads == torch.get_num_threads()
    assert "thread" in found.notes()[0]


def test_what_is_left_out_is_said_once_for_all_of_it() -> None:
    gaps = ad.bench(["cpu"]).gaps()
    assert sum("TF32 is a mode of NVIDIA GPUs" in line for line in gaps) == 2
    assert sum("The CPU's memory is the host's" in line for line in gaps) == 1


def test_the_slow_is_left_out_by_what_the_smaller_took_unless_all_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "MATMULS", (16, 100_000))
    found = ad.bench(["cpu"], ["matmul"])
    assert {f.what for f in found.figures} == {"16²"}
    assert {x.what for x in found.left_out if x.dtype != "tf32"} == {"100,000²"}
    monkeypatch.setattr(tasks, "MATMULS", (16, 32))
    monkeypatch.setattr(suite, "PATIENCE", 0.0)
    assert not ad.bench(["cpu"], ["matmul"]).figures
    assert {f.what for f in ad.bench(["cpu"], ["matmul"], full=True).figures} == {"16²", "32²"}


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PRODUCTS", (10**7,))
    gaps = ad.bench(["cpu"], ["product"], full=True).gaps()
    assert "of memory" in gaps[0]


def test_a_dtype_that_the_device_does_not_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise TypeError("this device has no float64.")

    broken = replace(task("matmul", dtype="float64"), make=refuse)  # type: ignore[arg-type]
    monkeypatch.setitem(tasks.KINDS, "matmul", lambda: iter([broken]))
    assert ad.bench(["cpu"], ["matmul"]).gaps() == [
        "matmul on cpu: 16² float64. this device has no float64."
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="virtual GPUs are for where there is none")
def test_a_virtual_gpu_is_measured_and_every_figure_is_marked() -> None:
    with ad.virtual_gpus(1, "h100"):
        found = ad.bench(["cuda"])
    assert {f.kind for f in found.figures} == set(tasks.KINDS)
    assert {f.dtype for f in found.figures if f.kind == "matmul"} == set(tasks.DTYPES)
    assert all(f.virtual and f.ceiling is None for f in found.figures)
    rows = [row for table in found.tables() for row in table.rows]
    assert all("cuda:0 virtual" in row for row in rows)
    assert any("no figure there is a GPU's speed" in line for line in found.notes())


@pytest.mark.skipif(torch.cuda.is_available(), reason="virtual GPUs are for where there is none")
def test_tf32_is_on_for_its_figures_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def note(chosen: Task) -> Task:
        def make(device: torch.device) -> object:
            matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
            seen[chosen.dtype] = {matmul.fp32_precision, conv.fp32_precision}
            return chosen.make(device)

        return replace(chosen, make=make)  # type: ignore[arg-type]

    noted = [note(task("matmul", dtype=dtype)) for dtype in ("float32", "tf32", "float64")]
    monkeypatch.setitem(tasks.KINDS, "matmul", lambda: iter(noted))
    before = torch.backends.cudnn.conv.fp32_precision
    with ad.virtual_gpus():
        ad.bench(["cuda"], ["matmul"])
    assert seen == {"float32": {"ieee"}, "tf32": {"tf32"}, "float64": {"ieee"}}
    assert torch.backends.cudnn.conv.fp32_precision == before


def a_gpus() -> Findings:
    """A measurement of the CPU, and the same as if a T4 had been four times as fast."""
    cpu = ad.bench(["cpu"], ["matmul", "product"])
    gpu = []
    for f in cpu.figures:
        chosen = task(f.kind, f.what, f.dtype)
        ceiling = suite._ceiling(card("t4"), chosen)
        gpu.append(
            replace(
                f,
                device="cuda:0",
                seconds=f.seconds / 4,
                unsynchronised=f.seconds / 400,
                ceiling=ceiling,
                of_ceiling=0.5 if ceiling else None,
            )
        )
    places = (*cpu.places, Place("cuda:0", "<b>T4</b>", False))
    return Findings(places, (*cpu.figures, *gpu), cpu.left_out)


def test_a_gpu_stands_beside_the_cpu_its_peak_and_the_clock_that_does_not_wait() -> None:
    found = a_gpus()
    text = plain_text(found.tables()[0], width=80)
    assert "vs cpu" in text
    assert "4 ×" in text
    assert "50%" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "100 × as fast as it is" in " ".join(found.notes())


def test_the_ceilings_are_the_catalogues() -> None:
    t4 = card("t4")
    assert suite._ceiling(t4, task("matmul", dtype="float16")) == t4.peak["float16"]
    assert suite._ceiling(t4, task("product")) == t4.bandwidth
    assert suite._ceiling(t4, task("transfer", dtype="")) == t4.link
    assert suite._ceiling(t4, task("matmul", dtype="bfloat16")) is None  # it has no unit for it


def test_the_report_is_one_page_that_needs_nothing_and_escapes_all_text(tmp_path: Path) -> None:
    found = a_gpus()
    write_page(tmp_path / "bench.html", found)
    page = (tmp_path / "bench.html").read_text()
    assert "<b>T4</b>" not in page
    assert "&lt;b&gt;T4" in page
    assert page.count("<dt>") == len(found.figures)
    assert "not a GPU's speed" not in page
    assert "src=" not in page


def test_the_report_is_seen_in_a_real_browser(tmp_path: Path) -> None:
    found = a_gpus()
    write_page(tmp_path / "bench.html", found)
    with browsing(tmp_path / "profile") as browser:
        for width in (1280, 390):
            browser.open(tmp_path / "bench.html", width=width, dark=width < 500)
            assert len(browser.texts(".bars dd")) == len(found.figures)
            assert browser.texts("h2") == [table.title for table in found.tables()]
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
            assert browser.complaints() == []
            asked = [url for url in browser.asked() if not url.startswith("data:")]
            assert asked == [(tmp_path / "bench.html").as_uri()]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return python("-m", "anydevice", "bench", *words, env=env)


def test_the_command_prints_json_for_a_program() -> None:
    data = json.loads(command("transfer", "--device", "cpu", "--json").stdout)
    assert data["left_out"][0]["kind"] == "transfer"
    assert data["places"][0]["device"] == "cpu"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--device", "cuda"], "'cuda' is not here"),
        (["--device", "tpu"], "expected a device"),
        (["matmull"], "did you mean matmul?"),
        (["--report", "nowhere/page.html"], "in a folder that does not exist"),
    ],
)
def test_wrong_use_is_a_sentence_before_anything_is_measured(words: list[str], hint: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert hint in done.stderr
    assert done.stdout == ""
