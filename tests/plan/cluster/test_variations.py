"""The same program with other options: what is varied, what is kept, how it is sorted."""

import json
from pathlib import Path

import pytest

from anydevice.errors import UsageError
from anydevice.plan.cluster.variations import (
    Outcome,
    Variation,
    Variations,
    _Plans,
    usual,
    vary,
    with_option,
)
from anydevice.plan.command import main, parse


def test_an_option_is_replaced_where_it_is_or_comes_last() -> None:
    assert with_option(["t.py", "--batch", "2", "-v"], "--batch", "4") == [
        *("t.py", "--batch", "4", "-v")
    ]
    assert with_option(["t.py", "--batch=2"], "--batch", "4") == ["t.py", "--batch=4"]
    assert with_option(["t.py"], "--batch", "4") == ["t.py", "--batch", "4"]
    assert with_option(["t.py"], "batch", "4") == ["t.py", "batch=4"]


@pytest.mark.parametrize("text", ["--batch", "--batch=", "=1,2", ""])
def test_a_variation_without_values_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="an option and its values after --vary"):
        Variation.parse(text)


def test_what_is_usually_tried() -> None:
    assert usual(4, ("--batch", 1)) == [
        Variation("--nodes", ("2", "4", "8")),
        Variation("--batch", ("1", "2")),
    ]
    with pytest.raises(UsageError, match="for --try to vary, got neither"):
        usual(None, None)


def test_the_plans_own_options_are_kept_for_each_variation() -> None:
    words = ["--gpu", "t4", "--vary", "--lr=1,2", "--json", "torchrun", __file__, "--lr", "3"]
    options = parse(words)
    assert options.vary == [Variation("--lr", ("1", "2"))]
    assert options.kept == ["--gpu", "t4"]
    assert options.words == words[5:]


def plan_with(rate: float, *, fits: bool = True) -> dict[str, object]:
    time = {"seconds": 1.0, "tokens_per_second": rate, "utilisation": 0.4}
    role = {"peak_bytes": {"reserved": 1 << 30}}
    return {"fits": fits, "clusters": [{"ranks": 4, "roles": [role], "time": time}]}


def test_the_quickest_that_fits_comes_first() -> None:
    found = Variations(
        ("--batch",),
        [
            Outcome(("1",), plan_with(10)),
            Outcome(("2",), None, "it failed"),
            Outcome(("3",), plan_with(99, fits=False)),
            Outcome(("4",), plan_with(20)),
        ],
    )
    assert [row["values"]["--batch"] for row in json.loads(found.to_json())] == list("4132")
    assert found.fits
    text = str(found)
    assert "NO" in text
    assert "it failed" in text


def test_what_was_planned_before_ctrl_c_is_not_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def run(self: object, command: list[str]) -> tuple[int, str, str]:
        asked.append(command[-1])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return 0, json.dumps(plan_with(float(command[-1]))), ""

    monkeypatch.setattr(_Plans, "_run", run)
    monkeypatch.setattr("anydevice.plan.cluster.variations.usable_cores", lambda: 1)
    given = [Variation("--batch", ("1", "2", "3"))], ["--gpu", "t4"], [str(tmp_path / "train.py")]
    with pytest.raises(KeyboardInterrupt):
        vary(*given)
    assert "1 of 3 are kept; the same command continues" in capsys.readouterr().err
    assert sorted(one.rate for one in vary(*given).outcomes) == [1, 2, 3]
    assert asked.count("1") == 1


@pytest.mark.parametrize(
    ("option", "names"),
    [("--vary=--lr=1,2", ["--lr"]), ("--try", ["--nodes"])],
)
def test_the_command_plans_variations(
    monkeypatch: pytest.MonkeyPatch, option: str, names: list[str]
) -> None:
    def found(variations: list[Variation], *given: object) -> Variations:
        assert [variation.option for variation in variations] == names
        return Variations((), [Outcome((), plan_with(10, fits=False))])

    monkeypatch.setattr("anydevice.plan.cluster.variations.vary", found)
    with pytest.raises(SystemExit) as ended:
        main(["--nodes", "2", *option.split("=", 1), "torchrun", __file__])
    assert ended.value.code == 1


@pytest.mark.long
def test_programs_are_planned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        """
import sys, torch
batch = int(sys.argv[sys.argv.index("--batch") + 1])
network = torch.nn.Linear(1000, 1000, device="cuda")
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for _ in range(4):
    network(torch.ones(batch, 1000, device="cuda")).sum().backward()
    optimizer.step()
"""
    )
    monkeypatch.chdir(tmp_path)
    given = [Variation("--batch", ("8", "64", "no"))], ["--gpu", "t4"], [str(program)]
    first = vary(*given)
    assert {one.values[0]: one.fits for one in first.outcomes} == {
        "8": True,
        "64": True,
        "no": False,
    }
    assert "3 of 3" in capsys.readouterr().err
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail("it was planned before"))
    again = vary([Variation("--batch", ("8", "64"))], *given[1:])
    assert again.fits
