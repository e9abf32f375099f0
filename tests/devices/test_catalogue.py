from itertools import pairwise

import pytest

import anydevice as ad
from anydevice.devices.catalogue import card, cards, known_table
from anydevice.tables import plain_text

REQUIRED = [
    *("t4", "v100-16gb", "v100-32gb", "l4", "a10g", "l40s", "rtx-3060", "rtx-3090", "rtx-4090"),
    *("rtx-5090", "a100-40gb", "a100-80gb", "h100", "h200", "b200"),
    *("rtx-4070-ti-super", "rtx-5070", "rtx-5070-ti", "rtx-5080", "rtx-pro-6000"),
    *("h100-pcie", "h100-nvl", "h100-500w", "gb200", "mi300x", "mi325x"),
]
SOURCED = {
    *("memory", "multiprocessors", "threads_per_multiprocessor", "l2_cache", "capability"),
    *("bandwidth", "memory_bus", "link", "peak"),
}
DTYPES = {"float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8"}


def test_the_cards_people_ask_for_are_known() -> None:
    assert set(REQUIRED) <= set(cards())


@pytest.mark.parametrize("kind", cards())
def test_every_figure_is_plausible_and_has_a_source(kind: str) -> None:
    entry = cards()[kind]
    assert {name.strip() for names in entry.source for name in names.split(",")} == SOURCED
    assert all(entry.source.values())
    assert 8 << 30 < entry.memory <= 256 << 30
    assert entry.threads_per_multiprocessor in (1024, 1536, 2048)
    assert 20 <= entry.multiprocessors <= 304
    assert 1e11 < entry.link * 10 < entry.bandwidth * 10
    assert 5e8 < entry.bandwidth / entry.memory_bus * 4 < 2e10  # the memory's clock
    assert set(entry.peak) <= DTYPES
    assert entry.peak["float64"] <= entry.peak["float32"]
    assert ("tf32" in entry.peak) == ("bfloat16" in entry.peak) == (entry.capability >= (8, 0))
    assert ("float8" in entry.peak) == (entry.capability >= (8, 9))


@pytest.mark.parametrize("kind", cards())
def test_rates_are_dense_ones(kind: str) -> None:
    """A figure "with sparsity" would double the step from one width to the next."""
    peak = cards()[kind].peak
    steps = [peak[d] for d in ("tf32", "bfloat16", "float8") if d in peak]
    for slower, faster in pairwise(steps):
        assert faster / slower == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [
        *[("RTX 4090", "rtx-4090"), ("rtx4090", "rtx-4090"), ("H100", "h100"), ("t4", "t4")],
        *[("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("A100 80GB", "a100-80gb")],
        *[("NVIDIA GeForce RTX 3090", "rtx-3090"), ("NVIDIA A100-SXM4-40GB", "a100-40gb")],
        *[("4090", "rtx-4090"), ("h100-80gb", "h100"), ("NVIDIA H100", "h100")],
        *[("h100-sxm", "h100"), ("H100 SXM5", "h100"), ("MI300X", "mi300x"), ("h200-sxm", "h200")],
    ],
)
def test_a_card_is_found_however_it_is_spelled(spelled: str, kind: str) -> None:
    assert card(spelled).kind == kind


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("a100", "did you mean a100-40gb or a100-80gb?"),
        ("rtx-4091", "did you mean rtx-4090"),
        ("potato", "known are titan-x, p100"),
        ("", "known are titan-x, p100"),
    ],
)
def test_an_unknown_card_is_answered_with_near_names(wrong: str, hint: str) -> None:
    with pytest.raises(ad.UsageError) as refusal:
        card(wrong)
    assert hint in str(refusal.value)


def test_the_catalogue_is_shown_as_a_table() -> None:
    assert "NVIDIA H200" in plain_text(known_table(), width=200)


def test_nobody_can_change_the_catalogue() -> None:
    with pytest.raises(TypeError):
        cards()["t4"] = cards()["h100"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        card("t4").memory = 0  # type: ignore[misc]


@pytest.mark.gpu
def test_the_card_here_is_as_the_catalogue_says() -> None:
    import torch

    properties = torch.cuda.get_device_properties(0)
    try:
        entry = card(properties.name)
    except ad.UsageError:
        pytest.skip(f"{properties.name} is not in the catalogue")
    assert entry.multiprocessors == properties.multi_processor_count
    assert entry.capability == (properties.major, properties.minor)
    assert entry.l2_cache == properties.L2_cache_size
    assert entry.threads_per_multiprocessor == properties.max_threads_per_multi_processor
    assert entry.memory == pytest.approx(properties.total_memory, rel=0.01)
    assert entry.memory_bus == properties.memory_bus_width
