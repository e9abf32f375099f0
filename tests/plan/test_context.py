"""The CUDA context: by card, by version of CUDA, or as it was measured."""

from __future__ import annotations

import pytest

from anydevice.devices.catalogue import card, cards
from anydevice.errors import UsageError
from anydevice.plan.context import MIB, Context, context_size, cuda_version


def test_the_published_contexts_lie_in_the_ranges() -> None:
    published = [
        ("v100-16gb", (11, 3), 1343),
        ("rtx-3090", (11, 1), 1687),
        ("rtx-3090", (11, 0), 1487),
        ("rtx-2080-ti", (10, 1), 878),
        ("rtx-3090", (12, 8), 256),
        ("a10g", (12, 1), 607),
    ]
    for kind, cuda, size in published:
        context = Context.of(card(kind), cuda)
        assert context.low <= size * MIB <= context.high, (kind, cuda)


def test_it_grows_with_the_card_and_with_eager_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Context.of(card("h100")).value > Context.of(card("t4")).value
    for known in cards().values():
        lazy, eager = Context.of(known), Context.of(known, (11, 3))
        assert lazy.low < lazy.value < lazy.high < eager.low
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    assert Context.of(card("t4"), (12, 1)) == Context.of(card("t4"), (11, 3))


def test_a_size_and_a_version_are_read_as_they_are_usually_written() -> None:
    assert context_size("1343") == context_size("1343MiB") == context_size(1343) == 1343 * MIB
    assert context_size("1.5GiB") == 1536 * MIB
    assert cuda_version("11.3") == (11, 3)
    assert cuda_version("12") == (12, 0)
    for wrong in ("cu113", "", "1.2"):
        with pytest.raises(UsageError, match="a version of CUDA such as"):
            cuda_version(wrong)
    with pytest.raises(UsageError, match="expected a size such as"):
        context_size("much")
