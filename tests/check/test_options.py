"""Options of `anydevice check` stand before the program, or after it."""

import pytest

from anydevice.check.command import parse
from anydevice.errors import UsageError


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text('parser.add_argument("--ignore", "--lr")\n')
    return str(path)


def test_options_may_stand_after_the_program(program):
    options = parse([program, "--gpu", "t4", "--gpu=h100", "--quiet"])
    assert options.gpu == ["t4", "h100"]
    assert options.quiet
    assert list(options.program.program) == [program]


def test_what_the_program_names_is_the_programs_and_so_is_all_after_two_dashes(program):
    options = parse(["--gpu", "t4", program, "--ignore", "x", "--lr", "1", "--", "--gpu", "9"])
    assert options.gpu == ["t4"]
    assert options.ignore == []
    assert list(options.program.program) == [
        *(program, "--ignore", "x", "--lr", "1", "--gpu", "9"),
    ]


def test_an_option_without_its_value_is_a_sentence(program):
    with pytest.raises(UsageError, match="expected a value after --gpu, got none"):
        parse([program, "--gpu"])
