"""`anydevice check`: mistakes and hidden costs of an unmodified program."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from anydevice.errors import UsageError
from anydevice.options import HelpWanted, options_after_program, options_before_program
from anydevice.plan.cluster.command import Launched, launched

HELP = """\
Usage: anydevice check [options] program.py [arguments]
       anydevice check [options] -m module [arguments]
       anydevice check [options] torchrun [arguments]
       anydevice check --rules [--json]

Device mistakes and hidden costs, before the GPU is rented. Some steps of the
program run on a virtual GPU. Each finding has its line, what it costs per step
on each card, and the change that fixes it. The cost is simulated: the step as it
is, minus the step without the finding. Files that the program writes are dropped.
Options may stand after the program's name too, except those that its file names
itself; these, and all after `--`, are passed to the program.

Options:
  --gpu KIND       find costs for this GPU; may be repeated; h100 by default.
                   `anydevice devices --known` lists the kinds
  --gpus N         how many GPUs the program sees, or ranks on a node; by default
                   as many as it asks for
  --ignore RULE    leave out what this rule finds; may be repeated.
                   `# anydevice: ok` does it for a line
  --fail-on LEVEL  which findings end in exit code 1: error, slow, memory, or a
                   share of a step such as slow:2%; may be repeated. By default
                   any finding does
  --portable       also find what fails on a machine without CUDA
  --values         run with values from the start; by default the GPU is hollow
                   where the program allows it, which is quicker
  --quiet          leave out what the program prints
  --report FILE    write an HTML page: source lines next to a timeline
  --sarif FILE     write SARIF, which GitHub shows on a diff
  --json           print JSON
  --rules          list the rules
  --help           show this message

`pyproject.toml` may have a table [tool.anydevice.check] with ignore, fail-on and
gpus.

Exit codes: 0 nothing found, 1 found, 2 it could not be checked.
"""
VALUES = ("--gpu", "--gpus", "--ignore", "--fail-on", "--report", "--sarif")
FLAGS = ("--portable", "--values", "--quiet", "--json", "--rules")


@dataclass
class Options:
    """The options of `anydevice check`."""

    gpu: list[str] = field(default_factory=list)
    gpus: int | None = None
    ignore: list[str] = field(default_factory=list)
    fail_on: list[str] = field(default_factory=list)
    portable: bool = False
    values: bool = False
    quiet: bool = False
    json: bool = False
    rules: bool = False
    report: str | None = None
    sarif: str | None = None
    program: Launched | None = None  # its arguments, and its launcher


def main(arguments: list[str]) -> NoReturn:
    """Checks, prints what was found, and exits with 1 if that fails the check, else with 0."""
    try:
        options = parse(arguments)
    except HelpWanted:
        print(HELP, end="")
        sys.exit(0)
    if options.rules:
        _list_rules(options.json)
    for path in (options.report, options.sarif):
        _refuse_missing_folder(path)
    from anydevice.check.checking import checked
    from anydevice.check.settings import settings_of
    from anydevice.plan.hollow.failures import CannotPlanError
    from anydevice.plan.hollow.program import Program
    from anydevice.tables import show

    program = options.program
    assert program
    settings = settings_of(
        _folder(program.program),
        ignore=options.ignore,
        fail_on=options.fail_on,
        gpus=options.gpu,
    )
    try:
        report = checked(
            Program(program.program),
            settings,
            num_gpus=options.gpus,
            world=program.world(None, options.gpus),
            hollow=False if options.values else None,
            portable=options.portable,
            quiet=options.quiet,
        )
    except CannotPlanError as error:
        sys.stderr.write(error.details)
        raise
    if options.json:
        print(report.to_json())
    else:
        show(report)
    if options.sarif:
        report.write_sarif(options.sarif)
    if options.report:
        report.write_page(options.report)
        print(f"anydevice: wrote the page {options.report}.", file=sys.stderr)
    sys.exit(1 if report.fails else 0)


def parse(arguments: list[str]) -> Options:
    """What the arguments of `anydevice check` ask for."""
    options = Options()
    given, rest = options_before_program("check", arguments, values=VALUES, flags=FLAGS)
    after, rest = options_after_program(rest, values=VALUES, flags=FLAGS)
    for option, value in (*given, *after):
        name = option.removeprefix("--").replace("-", "_")
        if option in FLAGS:
            setattr(options, name, True)
        elif isinstance(getattr(options, name), list):
            getattr(options, name).append(value)
        elif option == "--gpus":
            options.gpus = _count(value)
        else:
            setattr(options, name, value)
    if options.rules:
        if rest:
            raise UsageError(f"expected --rules without a program, got {rest[0]}.")
        return options
    if rest and rest[0] in ("-", "-c"):
        raise UsageError(f"expected a program in a file or -m module, got {rest[0]}.")
    options.program = launched(rest)
    return options


def _count(value: str) -> int:
    if value.isascii() and value.isdecimal() and int(value):
        return int(value)
    raise UsageError(f"expected a number of GPUs after --gpus, got {value!r}.")


def _folder(program: tuple[str, ...]) -> Path:
    """Where the search for a pyproject.toml begins."""
    return Path.cwd() if program[0] == "-m" else Path(program[0]).resolve().parent


def _refuse_missing_folder(path: str | None) -> None:
    if path and not (folder := Path(path).absolute().parent).is_dir():
        raise UsageError(f"expected a folder for {path}, got none at {folder}: create it first.")


def _list_rules(as_json: bool) -> NoReturn:
    import json

    from anydevice.check.rules import RULES
    from anydevice.tables import Table, show

    rows = [(rule.name, rule.kind, str(rule.__doc__).partition("\n")[0]) for rule in RULES]
    if as_json:
        names = ("name", "kind", "about")
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        show(Table(("rule", "kind", "finds"), list(rows)).__rich__())
    sys.exit(0)
