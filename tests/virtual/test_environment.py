"""What a process gives the Pythons that it starts."""

import re

import pytest

from anydevice.virtual.machine import Machine, machine
from anydevice.virtual.process.environment import (
    INHERIT,
    INHERIT_FOLDER,
    MAIN,
    REPORTS,
    VIRTUAL,
    Inherited,
    changes,
)


@pytest.mark.parametrize(
    "wanted", [machine(), machine(3, "t4", memory="5GiB"), machine(2, "a100-80gb", hollow=True)]
)
def test_a_machine_is_the_same_in_another_process(wanted: Machine) -> None:
    assert Machine.from_dict(wanted.to_dict()) == wanted
    inherited = Inherited(wanted, trace="trace.json", hide_real_gpus=True)
    assert Inherited.from_json(inherited.to_json()) == inherited


def test_what_pythons_inherit_is_in_one_variable() -> None:
    variables = changes(machine(2, "t4"), trace="trace.json")
    assert Inherited.from_json(str(variables[VIRTUAL])).machine == machine(2, "t4")
    assert str(variables["PYTHONPATH"]).startswith(str(variables[INHERIT]))


def test_the_files_that_run_without_the_package_name_the_same_variables() -> None:
    named = {
        file: set(re.findall(r"ANYDEVICE_\w+", (INHERIT_FOLDER / file).read_text("utf-8")))
        for file in ("sitecustomize.py", "anydevice.pth")
    }
    assert named == {"sitecustomize.py": {VIRTUAL, MAIN, REPORTS}, "anydevice.pth": {INHERIT}}
