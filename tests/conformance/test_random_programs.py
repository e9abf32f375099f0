"""What random programs are made of; `test_virtual_gpu.py` runs 200 of them."""

import torch

from tests.conformance.random_programs.choices import Choices
from tests.conformance.random_programs.programs import Step, read, written
from tests.conformance.random_programs.shrinking import shrunk
from tests.conformance.random_programs.values import unlike

PROGRAM = (Step("view", b"\x01\x02"), Step("binary", b"\xff\x07"), Step("drop", b"\x00\x09"))


def test_a_program_is_read_as_it_was_written():
    assert read(written(PROGRAM)) == PROGRAM


def test_choices_are_the_simplest_once_the_bytes_have_run_out():
    choices = Choices(b"\x05\x01\x00")
    assert [choices.below(4), choices.below(1000), choices.below(3)] == [1, 256, 0]
    assert choices.among("abc") == "a"
    assert not choices.once_in(2)


def test_a_failure_is_shrunk_to_the_steps_and_choices_that_it_needs():
    def tried(program):
        guilty = [s.data[0] for s in program if s.kind == "binary" and s.data[0] > 100]
        return f"3 of {len(program)} differ, by v{guilty[0]}" if guilty else None

    program, failure = shrunk(PROGRAM * 4, "9 of 12 differ, by v255", tried)
    assert written(program) == "binary:ff00"
    assert failure == "3 of 1 differ, by v255"


def test_another_failure_is_not_taken_for_the_same():
    def tried(program):
        return "the process ended with -11" if len(program) < 3 else "3 of 4 differ"

    assert shrunk(PROGRAM, "3 of 4 differ", tried)[0] == tuple(
        Step(s.kind, b"\0\0") for s in PROGRAM
    )


def test_a_value_is_compared_in_all_that_a_program_can_see():
    tensor = torch.arange(6.0)
    part, same = tensor[2:4], torch.tensor([2.0, 3.0])
    assert unlike(same, same.clone(), "cpu") is None
    assert unlike(same, same + 1, "cpu", values=False) is None
    assert "elements differ" in (unlike(same, same + 1, "cpu") or "")
    assert "dtype" in (unlike(same, same.double(), "cpu") or "")
    assert "stride" in (unlike(torch.ones(2, 3), torch.ones(3, 2).T, "cpu") or "")
    assert "storage_offset" in (unlike(part, same, "cpu") or "")
    assert "version" in (unlike(same, same.clone().add_(0), "cpu") or "")
    assert "the result is on cpu" in (unlike(same, same.clone(), "cuda:1") or "")
