"""`pytest --virtual-gpus 1 --device-check`: a test with a device mistake fails."""

from __future__ import annotations

from collections.abc import Generator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("anydevice").addoption(
        "--device-check",
        action="store_true",
        help="fail tests with device mistakes, as `anydevice check` finds them; "
        "with --virtual-gpus",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse the option without virtual GPUs."""
    if config.getoption("device_check") and not config.getoption("virtual_gpus", None):
        raise pytest.UsageError(
            "expected --virtual-gpus with --device-check, got none: add --virtual-gpus 1."
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the test, and fail it for the errors that were found."""
    if not item.config.getoption("device_check"):
        return (yield)
    from anydevice.check.session import Session
    from anydevice.check.settings import Settings
    from anydevice.virtual.machine import enabled

    machine = enabled()
    assert machine
    with Session([machine.gpu.kind], Settings(), item.name) as report:
        result = yield
    if report.errors:
        texts = (f"{one.site}: {one.rule}: {one.what}\nFix: {one.fix}" for one in report.errors)
        pytest.fail("\n".join(texts), pytrace=False)
    return result
