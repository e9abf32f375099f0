import json
import os

import pytest
import torch

import anydevice as ad
from anydevice.devices import inventory
from anydevice.devices.absence import Absence
from anydevice.devices.host import Cpu
from anydevice.devices.inventory import Devices, Gpu, Software
from anydevice.tables import plain_text

CPU = Cpu("cpu", "Some <b>CPU</b>", 4, 2, 2, ("AVX2",), 16 << 30, 8 << 30)
SOFTWARE = Software("0.1", "2.13.0", "13.0", None, "9.19.0", "580.95", "CPython 3.11", "Linux")
H100 = Gpu("cuda:0", "NVIDIA H100", 80 << 30, 79 << 30, 0.25, "9.0", 132, "580.95", "13.0")
MPS = Gpu("mps:0", "Apple GPU", None, None, None, None, None, None, None)
WHY = Absence("no driver", "no NVIDIA driver is installed", "Install <one>.")


def test_the_name_of_the_room_is_also_the_function() -> None:
    assert isinstance(ad.devices(), Devices)
    assert ad.devices().software == inventory.devices().software


def test_the_cpu_is_described() -> None:
    cpu = ad.devices().cpu
    assert cpu.name
    assert 1 <= cpu.cores <= 4096
    assert 1 <= cpu.usable <= (os.cpu_count() or 1)
    assert cpu.threads == torch.get_num_threads()
    assert cpu.memory
    assert cpu.free
    assert 0 < cpu.free <= cpu.memory


def test_the_report_reads_in_a_terminal() -> None:
    text = repr(Devices((H100, MPS), CPU, SOFTWARE, None))
    assert "NVIDIA H100" in text
    assert "80.0 GiB" in text
    assert "132 multiprocessors" in text
    assert "25% busy" in text
    assert "Apple GPU" in text
    assert "driver 580.95" in text
    assert "No GPU" not in text


def test_without_a_gpu_the_report_says_why_and_what_to_do() -> None:
    text = repr(Devices((), CPU, SOFTWARE, WHY))
    assert "No GPU: no NVIDIA driver is installed. Install <one>." in text


def test_a_narrow_terminal_gets_lines_instead_of_a_table() -> None:
    text = plain_text(Devices((H100,), CPU, SOFTWARE, WHY), width=40)
    assert "memory" not in text
    assert " ".join(text.split()).startswith("cuda:0 NVIDIA H100, 80.0 GiB, 79.0 GiB free, cap")


def test_the_notebook_view_escapes_what_it_shows() -> None:
    html = Devices((H100,), CPU, SOFTWARE, WHY)._repr_html_()
    assert "Some &lt;b&gt;CPU&lt;/b&gt;" in html
    assert "Install &lt;one&gt;." in html
    assert "<table" in html


def test_a_virtual_gpu_says_that_it_is_one() -> None:
    with ad.virtual_gpus(1, "t4"):
        there = ad.devices()
    assert there.gpus[0].virtual
    assert "virtual: the CPU computes" in there.issue_block()


def test_json_holds_every_figure() -> None:
    data = json.loads(Devices((H100, MPS), CPU, SOFTWARE, None).to_json())
    assert data["gpus"][0]["memory"] == 80 << 30
    assert data["gpus"][0]["driver"] == "580.95"
    assert data["gpus"][1]["multiprocessors"] is None
    assert data["cpu"]["instruction_sets"] == ["AVX2"]
    assert data["software"]["cudnn"] == "9.19.0"
    assert data["why_no_gpu"] is None


def test_the_block_for_an_issue_is_plain_lines() -> None:
    block = Devices((), CPU, SOFTWARE, WHY).issue_block()
    assert "torch: 2.13.0" in block.splitlines()
    assert "cudnn: 9.19.0" in block.splitlines()
    assert "no GPU: no NVIDIA driver is installed" in block.splitlines()
    assert any(line.startswith("cpu: Some <b>CPU</b>") for line in block.splitlines())


@pytest.mark.gpu
def test_a_real_gpu_is_in_the_report() -> None:
    found = ad.devices()
    assert len(found.gpus) == ad.num_gpus()
    assert found.why_no_gpu is None
    first = found.gpus[0]
    if first.device.startswith("cuda"):
        assert first.name == torch.cuda.get_device_name(0)
        assert first.multiprocessors == torch.cuda.get_device_properties(0).multi_processor_count
        assert first.free
        assert first.memory
        assert 0 < first.free <= first.memory
