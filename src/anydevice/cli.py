"""The command line: one function a command. torch is imported inside them, so --help is quick."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from anydevice.errors import UsageError
from anydevice.version import __version__

app = typer.Typer(
    name="anydevice",
    help="Write a PyTorch program once; run it on any device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"anydevice {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Write a PyTorch program once; run it on any device."""


@app.command()
def devices(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
    issue: Annotated[bool, typer.Option("--issue", help="Print lines for an issue.")] = False,
    known: Annotated[bool, typer.Option("--known", help="List the GPUs of the catalogue.")] = False,
) -> None:
    """What is here: the GPUs, the CPU, and why there is no GPU."""
    from anydevice.tables import show, show_text

    if json + issue + known > 1:
        raise UsageError("expected one of --json, --issue and --known, got several: name one.")
    if known:
        from anydevice.devices.catalogue import known_table

        return show(known_table())
    from anydevice.devices.inventory import devices as look

    found = look()
    if json:
        print(found.to_json())
    elif issue:
        show_text(found.issue_block())
    else:
        show(found)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="Write the page here.", show_default="FOLDER/report.html"
        ),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Write the main picture, too; needs a Chromium or Chrome."),
    ] = None,
) -> None:
    """A sweep as one HTML page: table, curves, durations, failures."""
    from anydevice.sweep.page.page import report as write_report
    from anydevice.sweep.page.page import report_picture

    print(write_report(folder, output))
    if png:
        print(report_picture(folder, png))


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
def run(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """An unmodified program, on GPUs that are not there."""
    from anydevice.virtual.process.launch import main as launch

    launch(words or [])


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where the runs and the report go.")] = Path(
        "anydevice-demo"
    ),
) -> None:
    """In a minute: the devices, a sweep over them, and its report."""
    from anydevice.demo import demo as show_all

    show_all(folder)


@app.command()
def bench(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND", help="matmul, product, convolution, transfer; training."),
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", help="Measure this one; may be given again.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML page there.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Leave nothing out, however slow.")] = False,
) -> None:
    """CPU against GPU: how fast each is at the same work, waited for."""
    from anydevice.bench.page import check_page, write_page
    from anydevice.bench.suite import bench as measure
    from anydevice.tables import show

    if kinds == ["training"]:
        if report:
            raise UsageError("expected --report for the other kinds: `anydevice report FOLDER`.")
        from anydevice.bench.training import training

        results = training(device, verbose=not json)
        print(results.to_json()) if json else show(results)
        return
    page = check_page(report) if report else None
    found = measure(device, kinds, full=full)
    print(found.to_json()) if json else show(found)
    if page:
        write_page(page, found)
        print(f"report: {page}", file=sys.stderr)


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
def plan(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Will a program fit a GPU, which batch, how long is a step."""
    from anydevice.plan.command import main as plan_program

    try:
        plan_program(words or [])
    except SystemExit as end:
        sys.stdout.flush()
        _end(int(end.code or 0))  # else Python takes torch apart, for a fifth of a plan's time


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A file of TOML: the experiment and its runs.")],
    folder: Annotated[Path | None, typer.Option(help="Where the records go.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many runs at a time.")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs of each run: 1, 2 or 0.5.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Those, too.")] = False,
) -> None:
    """Many runs of one experiment; what is done already is kept."""
    from anydevice.sweep.file import read_order
    from anydevice.tables import show

    order = read_order(file, folder)
    given = {"workers": workers, "gpus": gpus}
    options = order.options | {name: value for name, value in given.items() if value is not None}
    results = order.sweep.run(order.folder, retry_failed=retry_failed, **options)
    show(results)
    sys.exit(not results.complete)


@app.command(name="show")
def show_results(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")],
    sort: Annotated[str | None, typer.Option(help="A column; -NAME the other way round.")] = None,
    epochs: Annotated[bool, typer.Option("--epochs", help="A line an epoch.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
) -> None:
    """The runs of a sweep, compared."""
    from anydevice.sweep.results.results import Results
    from anydevice.tables import show

    results = Results.of(folder)
    if json:
        print(results.to_json())
    else:
        show(results.shown(sort, every_epoch=epochs))
    sys.exit(bool(results.damaged))


def main() -> None:
    """Run the command; wrong use is one sentence and exit code 2, never a traceback."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except UsageError as error:
        print(f"anydevice: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader (a `| head`) has gone
        _end(1)
    except OSError as error:  # a full disk under a redirection, for one
        _end(1, f"anydevice: {error}")


def _end(code: int, sentence: str = "") -> NoReturn:
    """End at once; also where stdout is broken and the flush at exit would fail once more."""
    if sentence:
        print(sentence, file=sys.stderr, flush=True)
    os._exit(code)
