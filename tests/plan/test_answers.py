"""Programs of many kinds, in the manner of public code: each gets an answer, with its terms."""

from functools import partial
from pathlib import Path
from time import sleep

import pytest

from anydevice.errors import UsageError
from anydevice.plan.answer import Plan
from anydevice.plan.hollow import isolated
from anydevice.plan.hollow.program import Program
from anydevice.plan.planning import plan

PROGRAMS = Path(__file__).parent / "programs"
TRAINS = (3, "step")
LONG = {"style_transfer"}
# What is counted, where that is no optimizer's step, and parts of what the answer says.
EXPECTED: dict[str, tuple[tuple[int, str], list[str]]] = {
    "accumulate": ((1, "step"), ["A step has 128 backward passes"]),
    "bf16_autocast": (TRAINS, ["bf16: the Tesla T4 has no bf16 units"]),
    "by_hand": ((3, "update"), []),
    "by_hand_functional": ((6, "backward pass"), ["steps no optimizer"]),
    "compiled_model": (TRAINS, ["torch.compile: predicted for the program as written"]),
    "curriculum": (
        TRAINS,
        ["numbers that curriculum.py:14 compares are not equal", "taken at curriculum.py:23"],
    ),
    "detection": (TRAINS, ["50% of a mask's values", "unique()", "detection.py:18"]),
    "early_stopping": (TRAINS, ["early_stopping.py:31"]),
    "embedding_by_hand": ((3, "update"), []),
    "evaluate": ((6, "forward pass"), ["steps no optimizer"]),
    "fails_later": ((2, "step"), ["failed at fails_later.py:13, after 2 steps, with FileNotFound"]),
    "fgsm": ((6, "backward pass"), ["fgsm.py:12"]),
    "flex_attention": (TRAINS, ["torch.compile: predicted"]),
    "generate": (
        (20, "forward pass"),
        ["no branch is taken at generate.py:46", "Each further pass leaves", "behind"],
    ),
    "masks": (TRAINS, ["50% of a mask's values are assumed to be true"]),
    "own_optimizer": ((3, "update"), []),
    "policy_gradient": (TRAINS, []),
    "ppo": (TRAINS, []),
    "serves": ((10, "forward pass"), ["program was stopped there"]),
    "raw_ops": ((1, "program"), ["answer is for all of it"]),
    "two_gpus": (TRAINS, ["it was given 2 (--gpus)"]),
    "timed": ((10, "backward pass"), []),
}


def planned(path: Path, **options: object) -> Plan:
    return plan(Program((str(path),)), "t4", **options)  # type: ignore[arg-type]


def named(path: Path) -> object:
    marks = [pytest.mark.long] if path.stem in LONG else []
    return pytest.param(path.stem, marks=marks)


@pytest.mark.parametrize("name", map(named, sorted(PROGRAMS.glob("*.py"))))
def test_a_program_is_answered(name: str) -> None:
    run = planned(PROGRAMS / f"{name}.py").verdicts[0].run
    counted, said = EXPECTED.get(name, (TRAINS, []))
    assert (run.steps, run.unit) == counted
    notes = "\n".join(run.notes)
    for part in said:
        assert part in notes
    assert run.fits
    assert run.tensors > 0


def test_each_gpu_of_a_process_has_a_column() -> None:
    verdict = planned(PROGRAMS / "data_parallel.py", num_gpus=2)["t4"]
    first, second = verdict.of_each_gpu()
    assert (first.run.device, second.run.device) == (0, 1)
    weights = 4 * (256 * 512 + 512 + 512 * 10 + 10)
    assert first.holding()["parameters"] == weights
    assert first.holding()["optimizer state"] >= 2 * weights
    assert "optimizer state" not in second.holding()
    assert second.peak.bytes > 2 * weights  # a copy of the network, and its gradients
    assert verdict.run.device == 0
    assert sum(first.holding().values()) == first.run.device_bytes


def test_a_gan_has_a_row_for_each_optimizer() -> None:
    verdict = planned(PROGRAMS / "wgan_gp.py")["t4"]
    (critic, turns, most, spent), (generator, once, least, _) = verdict.phases()
    assert (critic, turns, generator, once) == ("Sequential", 5, "Sequential (2)", 1)
    assert most > least > 0
    assert spent
    assert verdict.time
    assert 0.5 * verdict.time.seconds < spent < verdict.time.seconds


def test_a_prompt_and_a_token_have_a_row_each() -> None:
    verdict = planned(PROGRAMS / "generate.py")["t4"]
    (prompt, _, most, _), (token, count, _, _) = verdict.phases()
    assert (prompt, token, count) == ("first pass, of 1 × 32", "last pass, of 1 × 1", 19)
    assert most <= verdict.peak.bytes


def test_many_passes_of_a_step_are_not_all_run_again() -> None:
    run = planned(PROGRAMS / "accumulate.py").verdicts[0].run
    assert [count for _, count in run.parts] == [1, 126, 1]
    whole = planned(PROGRAMS / "accumulate.py", steps=1).verdicts[0].run
    assert run.requested >= whole.requested
    time = run.predicted(run.samples)
    assert time
    assert time.seconds > 100 * time.low / 200


def test_a_share_of_true_values_may_be_given() -> None:
    few, many = (
        planned(PROGRAMS / "masks.py", assume_true=share).verdicts[0].run.tensors
        for share in (0.1, 1.0)
    )
    assert few < many
    with pytest.raises(UsageError, match="expected a share from 0 to 1 as assume_true, got 2"):
        planned(PROGRAMS / "masks.py", assume_true=2)


def test_passes_forward_are_counted_if_asked_for() -> None:
    run = planned(PROGRAMS / "lazy_layers.py", inference=True, steps=2).verdicts[0].run
    assert (run.unit, run.steps >= 2) == ("forward pass", True)


def test_a_long_plan_says_so_once_and_not_for_each_of_its_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "LONG", 0)
    for _ in range(2):
        isolated.isolated(partial(sleep, 0.3), waiting="x.py is still running on a hollow t4")
    assert capsys.readouterr().err == "anydevice: x.py is still running on a hollow t4 …\n"


def test_what_a_program_prints_is_shown_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated, "LONG", 1000)  # a busy machine says that it is still running
    (tmp_path / "train.py").write_text(
        "import torch\nx = torch.rand(3, device='cuda').sum()\nprint('sum', x.item(), f'{x:.2f}')\n"
    )
    planned(tmp_path / "train.py", quiet=False)
    assert "sum ? ?\n" in capsys.readouterr().err
    planned(tmp_path / "train.py")
    assert capsys.readouterr().err == ""
