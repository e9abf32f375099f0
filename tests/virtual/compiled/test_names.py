"""The private names of Triton, Inductor and Dynamo that are touched are in this torch."""

from typing import Any

import pytest

from anydevice.virtual.compiled import names

pytest.importorskip("triton")


@pytest.mark.parametrize(
    "looked_up",
    [
        names.triton_names,
        names.interpreter_names,
        names.inductor_names,
        names.dynamo_names,
        names.ahead_names,
    ],
)
def test_this_version_has_each_name(looked_up: Any) -> None:
    assert vars(looked_up())


@pytest.mark.parametrize("with_values", [False, True])
def test_this_version_has_each_setting_that_is_changed(with_values: bool) -> None:
    wanted = names.WITH_VALUES if with_values else names.CONFIGURATION
    assert names.configuration(with_values=with_values) == wanted


def test_a_missing_name_is_said_with_the_version() -> None:
    with pytest.raises(
        names.MissingNameError, match=r"torch \d.* has no torch._dynamo.utils.count"
    ):
        names._found("torch._dynamo.utils:count")
