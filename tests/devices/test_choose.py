import logging

import numpy as np
import pytest
import torch

import anydevice as ad
from anydevice.devices import choose
from anydevice.devices.load import Load
from anydevice.notices import say_once

CARDS = {
    "cuda:0": Load("NVIDIA H100", total=80 << 30, free=70 << 30, busy=1.0),
    "cuda:1": Load("NVIDIA H100", total=80 << 30, free=20 << 30, busy=0.1),
    "cuda:2": Load("NVIDIA H100", total=80 << 30, free=60 << 30, busy=0.0),
}


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's answers, where a machine with three GPUs would give others."""
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(choose, "load_of", lambda device: CARDS[str(device)])


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    say_once.cache_clear()


def test_cpu_and_gpus_are_plain_torch_devices(three_gpus: None) -> None:
    assert ad.cpu() == torch.device("cpu")
    assert ad.gpu() == torch.device("cuda:0")
    assert ad.gpu(2) == torch.device("cuda:2")
    assert ad.num_gpus() == 3
    assert ad.try_gpu(1) == torch.device("cuda:1")
    assert ad.try_all_gpus() == [torch.device("cuda", index) for index in range(3)]


def test_a_gpu_is_whatever_the_accelerator_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    assert ad.try_gpu() == torch.device("xpu:0")
    assert ad.pick("gpu") == ad.pick(0) == torch.device("xpu:0")


def test_without_a_gpu_try_gpu_falls_back_and_says_so_once(
    no_gpu: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "anydevice"):
        assert ad.try_gpu() == ad.try_gpu() == torch.device("cpu")
    assert len(caplog.messages) == 1
    assert "try_gpu(0) falls back to the CPU, because" in caplog.messages[0]
    assert ad.try_all_gpus() == []
    assert ad.pick("auto") == torch.device("cpu")


def test_auto_takes_the_gpu_with_room_and_rest(three_gpus: None) -> None:
    assert ad.pick("auto") == torch.device("cuda:2")  # cuda:0 has more memory, but no time


def test_auto_takes_the_freest_of_the_busy(
    three_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"cuda:0": 1, "cuda:1": 3, "cuda:2": 2}
    monkeypatch.setattr(choose, "load_of", lambda d: Load("g", total=9, free=free[str(d)], busy=1))
    assert ad.pick() == torch.device("cuda:1")


@pytest.mark.parametrize("spec", ["cpu", torch.device("cpu"), "meta"])
def test_a_device_that_is_here_is_taken_as_given(spec: str | torch.device) -> None:
    assert ad.pick(spec) == torch.device(spec)


def test_a_gpu_that_is_not_here_is_refused_with_a_list_of_what_is(three_gpus: None) -> None:
    for wrong in ("cuda:3", 3, "gpu:3", torch.device("cuda:3")):
        with pytest.raises(ad.DeviceNotFound) as refusal:
            ad.pick(wrong)
        assert "cuda:1 (NVIDIA H100, 20.0 GiB free)" in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("wrong", ["cuda", "cuda:1", "mps", 0, "gpu"])
def test_without_a_gpu_the_refusal_names_the_reason_and_try_gpu(
    no_gpu: None, wrong: str | int
) -> None:
    with pytest.raises(ad.DeviceNotFound, match=r"is not here, only cpu is: .*ad\.try_gpu\(\)"):
        ad.pick(wrong)


def test_a_gpus_name_needs_no_gpu_and_using_it_is_the_error(no_gpu: None) -> None:
    assert ad.gpu(1) == torch.device("cuda:1")
    with pytest.raises((RuntimeError, AssertionError)) as refusal:
        torch.ones(1, device=ad.gpu(1))
    assert "Fix: device = anydevice.try_gpu()" in ad.explain(refusal.value)


@pytest.mark.parametrize("spec", [1, "1", "gpu:1", np.int64(1)])
def test_a_gpu_may_be_named_by_its_index(three_gpus: None, spec: str | int) -> None:
    assert ad.pick(spec) == torch.device("cuda:1")


@pytest.mark.parametrize("wrong", ["0", None, -1, 1.5, True])
def test_an_index_that_is_none_is_refused(three_gpus: None, wrong: object) -> None:
    for function in (ad.gpu, ad.try_gpu):
        with pytest.raises(ad.DeviceNotFound, match="expected a GPU's index, counted from 0, got"):
            function(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["cuuda", "cuda:x", "", "cuda:-1", "gpu:\u0663", None, 1.5, True])
def test_a_name_that_makes_no_sense_is_refused_in_one_sentence(wrong: object) -> None:
    with pytest.raises(ad.DeviceNotFound) as refusal:
        ad.pick(wrong)  # type: ignore[arg-type]
    assert str(refusal.value).startswith("expected a device such as")
    assert repr(wrong) in str(refusal.value)


def test_a_typing_error_is_answered_with_the_near_name() -> None:
    for typed, meant in (("cuuda:1", "cuda"), ("CPU", "cpu"), ("Auto", "auto"), ("gpuu", "gpu")):
        with pytest.raises(ad.DeviceNotFound, match=f"did you mean {meant}"):
            ad.pick(typed)


def test_there_is_only_one_cpu() -> None:
    with pytest.raises(ad.DeviceNotFound, match="of which there is one"):
        ad.pick("cpu:3")


def test_errors_are_caught_as_torch_users_catch_them() -> None:
    assert issubclass(ad.DeviceNotFound, RuntimeError)
    assert issubclass(ad.DeviceNotFound, ad.UsageError)


def test_use_makes_a_device_the_default_inside_the_block_only(elsewhere: torch.device) -> None:
    before = ad.current()
    with ad.use(elsewhere) as device:
        assert device == elsewhere
        assert torch.zeros(2).device == elsewhere == ad.current()
        with ad.use("cpu"):
            assert torch.zeros(2).device == ad.current() == torch.device("cpu")
        assert ad.current() == elsewhere
    assert ad.current() == before


def test_use_ends_with_an_error_too() -> None:
    with pytest.raises(KeyError), ad.use("meta"):
        raise KeyError
    assert ad.current() == torch.device("cpu")


@pytest.mark.gpu(2)
def test_use_sets_the_current_gpu() -> None:
    with ad.use(ad.gpu(1)):
        assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.current_device_index() == 0


@pytest.mark.gpu
def test_a_real_gpu_is_chosen_and_described() -> None:
    assert ad.pick("auto").type == ad.gpu().type
    with pytest.raises(ad.DeviceNotFound, match=torch.get_device_module().get_device_name(0)):
        ad.pick(ad.num_gpus())


@pytest.mark.gpu
def test_nvml_and_torch_agree_on_a_real_gpus_memory() -> None:
    pytest.importorskip("pynvml")
    from anydevice.devices.load import _nvml_reading

    reading = _nvml_reading(torch.device("cuda:0"))
    if reading is None:
        pytest.skip("NVML does not know this GPU: it is virtual, or a slice of one")
    free, busy = reading
    assert free == pytest.approx(torch.cuda.mem_get_info(0)[0], rel=0.05)
    assert busy is None or 0 <= busy <= 1
