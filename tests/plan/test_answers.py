"""Programs of many kinds, in the manner of public code: each gets an answer, with its terms."""

from pathlib import Path

import pytest

from anydevice.plan.answer import Plan
from anydevice.plan.hollow.program import Program
from anydevice.plan.planning import plan

PROGRAMS = Path(__file__).parent / "programs"
TRAINS = (3, "step")
# What is counted, where that is no optimizer's step, and parts of what the answer says.
EXPECTED: dict[str, tuple[tuple[int, str], list[str]]] = {
    "accumulate": (TRAINS, []),
    "bf16_autocast": (TRAINS, ["bf16: the Tesla T4 has no bf16 units"]),
    "by_hand": ((3, "update"), []),
    "by_hand_functional": ((6, "backward pass"), ["steps no optimizer"]),
    "compiled_model": (TRAINS, ["torch.compile: predicted for the program as written"]),
    "detection": (TRAINS, ["50% of a mask's values", "unique()", "detection.py:18"]),
    "early_stopping": (TRAINS, ["early_stopping.py:31"]),
    "embedding_by_hand": ((3, "update"), []),
    "evaluate": ((6, "forward pass"), ["steps no optimizer"]),
    "fails_later": ((2, "step"), ["failed at fails_later.py:13, after 2 steps, with FileNotFound"]),
    "fgsm": ((6, "backward pass"), ["fgsm.py:12"]),
    "flex_attention": (TRAINS, ["torch.compile: predicted"]),
    "generate": ((20, "forward pass"), ["no branch is taken at generate.py:46"]),
    "masks": (TRAINS, ["50% of a mask's values are assumed to be true"]),
    "own_optimizer": ((3, "update"), []),
    "policy_gradient": (TRAINS, []),
    "ppo": (TRAINS, []),
    "raw_ops": ((1, "program"), ["answer is for all of it"]),
    "timed": ((10, "backward pass"), []),
}


def planned(path: Path, **options: object) -> Plan:
    return plan(Program((str(path),)), "t4", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_program_is_answered(name: str) -> None:
    run = planned(PROGRAMS / f"{name}.py").verdicts[0].run
    counted, said = EXPECTED.get(name, (TRAINS, []))
    assert (run.steps, run.unit) == counted
    notes = "\n".join(run.notes)
    for part in said:
        assert part in notes
    assert run.fits
    assert run.tensors > 0
