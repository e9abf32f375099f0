"""Settings, what counts, and the forms of a report."""

import json
from pathlib import Path

import pytest

import anydevice as ad
from anydevice.check.checking import checked
from anydevice.check.command import parse
from anydevice.check.finding import Finding
from anydevice.check.report import Report
from anydevice.check.run import Checked
from anydevice.check.settings import Settings, failing, settings_of
from anydevice.check.source import is_accepted, keeping
from anydevice.check.spare import spares
from anydevice.check.trace import Place, Site
from anydevice.errors import UsageError
from anydevice.plan.hollow.program import Program

STEP = {"t4": 10e-3, "h100": 1e-3}


def found(rule: str, kind: str, seconds: float, line: int = 3, file: str = "/x.py") -> Finding:
    costs = {"t4": seconds, "h100": seconds} if seconds else {}
    site = Site((Place(file, line, "train"),))
    return Finding(rule, kind, "What.", "Do.", site, per="step", seconds=costs)  # type: ignore[arg-type]


def report(*findings: Finding, **settings: object) -> Report:
    checked = Checked(list(findings), STEP, STEP, steps=5)
    return Report.of("train.py", Settings(gpus=("t4", "h100"), **settings), checked)  # type: ignore[arg-type]


def test_errors_come_first_then_the_most_expensive_and_small_ones_are_folded() -> None:
    cheap, dear = found("small-copy", "slow", 4e-6), found("pageable-copy", "slow", 3e-4)
    wrong, mid = found("dropped-move", "error", 0), found("synchronisation", "slow", 2e-4)
    made = report(cheap, mid, wrong, dear)
    assert [one.rule for one in made.findings] == [
        "dropped-move",
        "pageable-copy",
        "synchronisation",
    ]
    assert made.small == [cheap]
    assert made.fails
    assert not report(cheap).fails


@pytest.mark.parametrize(
    ("levels", "fails"),
    [((), True), (("error",), False), (("slow:50%",), False), (("slow:2%",), True)],
)
def test_what_fails_is_chosen(levels: tuple[str, ...], fails: bool) -> None:
    settings = {"fail_on": failing(levels)} if levels else {}
    assert report(found("synchronisation", "slow", 2e-4), **settings).fails is fails


def test_a_line_may_be_accepted(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "a = b.item()  # anydevice: ok\nc = d.item()  # anydevice: ok small-copy\n"
        "e = f(\n    g,\n)  # anydevice: ok\nfor x in y:\n    pass  # anydevice: ok\n"
    )
    accepted = [is_accepted(str(file), line, "synchronisation") for line in (1, 2, 3, 6)]
    assert accepted == [True, False, True, False]
    assert is_accepted(str(file), 2, "small-copy")
    assert report(found("synchronisation", "slow", 1.0, 1, str(file))).findings == []


def test_pyproject_has_settings(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[tool.anydevice.check]\nignore = ["small-copy"]\nfail-on = "slow:2%"\ngpus = ["t4"]\n'
    )
    (tmp_path / "src").mkdir()
    settings = settings_of(tmp_path / "src", ignore=["sent-again"])
    assert settings.ignore == ("small-copy", "sent-again")
    assert dict(settings.fail_on) == {"error": 0.0, "slow": 0.02}
    assert settings.gpus == ("t4",)
    project.write_text("[tool.anydevice.check]\nignored = []\n")
    with pytest.raises(UsageError, match=r"ignored.*did you mean ignore"):
        settings_of(tmp_path)


def test_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean synchronisation"):
        settings_of(None, ignore=["synchronization"])
    with pytest.raises(UsageError, match="slow:2%"):
        failing(["fast"])
    with pytest.raises(UsageError, match=r"nothing\.py, which does not exist"):
        parse([str(tmp_path / "nothing.py")])
    with pytest.raises(UsageError, match="number of GPUs"):
        parse(["--gpus", "two", __file__])


def test_sarif_names_lines_of_the_repository(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("x\n")
    made = report(found("dropped-move", "error", 0, 1, str(file)))
    run = json.loads(made.to_sarif(tmp_path))["runs"][0]
    (result,) = run["results"]
    location = result["locations"][0]["physicalLocation"]
    assert result["ruleId"] in [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert (result["level"], location["artifactLocation"]["uri"]) == ("error", "train.py")
    assert location["region"] == {"startLine": 1}


PROGRAM = """
import torch

with open("left.txt", "w") as file:
    file.write("no")
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(8, 64, device="cuda")
for step in range(100):
    loss = net(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {last}
"""


def test_a_cost_is_the_step_minus_the_step_without_it(tmp_path: Path) -> None:
    """The saving is that of the changed program, and the program leaves no file."""
    file = tmp_path / "train.py"
    reports = []
    for last in ("loss.item()", "pass"):
        file.write_text(PROGRAM.format(last=last))
        reports.append(checked(Program((str(file),)), Settings(gpus=("t4", "h100"))))
    slow, quick = reports
    (finding,) = slow.findings
    assert (finding.rule, finding.site.line, finding.count) == ("synchronisation", 14, 1)
    for gpu in ("t4", "h100"):
        saved = slow.step[gpu] - quick.step[gpu]
        assert finding.seconds[gpu] == pytest.approx(saved, rel=0.1)
    assert slow.fixed == pytest.approx(quick.step, rel=0.05)
    assert quick.findings == []
    assert not (tmp_path / "left.txt").exists()
    slow.hints.append(found("launch-bound", "slow", 2e-3))
    page = slow.write_page(tmp_path / "page.html").read_text()
    assert "loss.item()" in page
    hint = (
        "Hint, launch-bound at x.py:3: What. Try: Do.. It saves 2 ms on t4, 2 ms on h100 per step."
    )
    assert hint in page


def test_a_program_that_fails_by_itself_is_wrong_use(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\nx = torch.ones(3).cuda()\nraise ValueError('no data')\n")
    with pytest.raises(UsageError, match=r"train\.py:3: ValueError: no data"):
        checked(Program((str(file),)), Settings())


def test_a_block_is_watched_in_this_process() -> None:
    import torch

    with ad.check(gpus="t4") as report:
        host = torch.ones(3, device="cuda").to("cpu", non_blocking=True)
        assert host.sum() == 3
    assert [one.rule for one in report.errors] == ["read-before-arrival"]
    with pytest.raises(RuntimeError), ad.check() as report:
        torch.ones(3, device="cuda") + torch.ones(3)
    assert [one.rule for one in report.errors] == ["device-error"]
    assert not torch.cuda.is_available()


def test_the_statement_that_keeps_a_loss_is_found(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "for x in y:\n    loss = net(x)\n    total += loss.item()\n    losses.append(loss)\n"
    )
    assert keeping(str(file), 2) == (4, "losses")


def test_lazy_layers_and_updates_of_data_are_watched() -> None:
    import torch

    with ad.check(gpus="t4") as report:
        network = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.LazyLinear(2)).cuda()
        x = torch.ones(4, 5, device="cuda")
        for _ in range(4):
            network.zero_grad()
            network(x).sum().backward()
            for parameter in network.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.1)
    assert (report.unit, report.steps) == ("update", 4)


def test_copies_of_weights_without_bytes_are_no_error() -> None:
    from torch import nn

    assert list(spares([nn.Sequential(nn.LazyLinear(3))], set())) == []
