"""`pytest --virtual-gpus 2:h100`: tests that need GPUs run where there are none."""

import os

import pytest

from anydevice.errors import UsageError


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("anydevice").addoption(
        "--virtual-gpus",
        metavar="N[:KIND]",
        help="run the tests on N virtual GPUs, of a kind such as t4 or h100",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Put the GPUs in place before a conftest or test asks torch whether there are any."""
    asked = early_config.known_args_namespace.virtual_gpus
    if asked is None:
        return
    number, _, kind = asked.partition(":")
    if not (number.isascii() and number.isdecimal()):
        raise pytest.UsageError(
            f"expected --virtual-gpus N or N:KIND, such as 2 or 2:h100, got {asked!r}."
        )
    from anydevice.virtual.machine import machine
    from anydevice.virtual.process import environment
    from anydevice.virtual.process.import_hook import import_torch

    try:
        wanted = machine(int(number), kind or "h100")
        import_torch(wanted)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    changed = environment.changes(wanted)  # for the processes that tests start
    before = {name: os.environ.get(name) for name in changed}
    _set(changed)
    early_config.add_cleanup(lambda: _set(before))


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_report_header(config: pytest.Config) -> str | None:
    """Report that nothing runs on a real GPU."""
    if config.getoption("virtual_gpus") is None:
        return None
    from anydevice.virtual.machine import enabled

    machine = enabled()
    assert machine
    return f"virtual GPUs: {machine.gpus} × {machine.gpu.name} (nothing runs on a real GPU)"
