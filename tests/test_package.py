import subprocess
import sys

import pytest

import anydevice as ad


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_anydevice_costs_no_torch_import() -> None:
    assert python("import anydevice, sys; print('torch' in sys.modules)") == "False"


def test_help_costs_no_torch_import() -> None:
    code = (
        "import sys; sys.argv = ['anydevice', '--help']\n"
        "from anydevice.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    assert python(code).splitlines()[-1] == "0 False"


def test_every_public_name_is_there_and_documented() -> None:
    for name in ad.__all__:
        assert getattr(ad, name).__doc__, name
    assert set(ad.__all__) <= set(dir(ad))


def test_public_names_survive_imports_of_the_rooms_in_any_order() -> None:
    code = (
        "import anydevice.devices.move, anydevice.devices.placement\n"
        "import anydevice as ad\n"
        "print(ad.devices().cpu.device, ad.move(1, 'cpu'), callable(ad.placement))"
    )
    assert python(code) == "cpu 1 True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'teleport'"):
        ad.teleport  # type: ignore[attr-defined]  # noqa: B018
