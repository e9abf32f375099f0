"""The command line: a function for each command. They import torch inside, so --help is quick."""

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
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Write a PyTorch program once; run it on any device."""


@app.command()
def devices(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
    issue: Annotated[bool, typer.Option("--issue", help="Print text for a bug report.")] = False,
    known: Annotated[bool, typer.Option("--known", help="List the GPUs of the catalogue.")] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show memory, load, heat and processes, again and again."),
    ] = False,
    setup: Annotated[
        bool, typer.Option("--setup", help="Say what to install here, step by step.")
    ] = False,
) -> None:
    """Show the GPUs and the CPU of this machine, and why there is no GPU."""
    from anydevice.tables import show, show_text

    if json + issue + known + watch + setup > 1:
        raise UsageError(
            "expected one of --json, --issue, --known, --watch and --setup, got several: name one."
        )
    if watch:
        from anydevice.devices.watching import watch as watch_devices

        return watch_devices()
    if setup:
        from anydevice.devices.setup import guide

        return show(guide())
    if known:
        from anydevice.devices.catalogue import known_table

        return show(known_table())
    from anydevice.devices.inventory import devices as look

    found = look()
    if json:
        print(found.to_json())
    elif issue:
        from anydevice.virtual.versions import report as virtual_gpus_here

        show_text("\n".join([found.issue_block(), *virtual_gpus_here()]))
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
        typer.Option(help="Also write the main picture as a PNG; needs Chromium or Chrome."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page to this machine; it follows the runs.")
    ] = False,
    port: Annotated[int, typer.Option(help="The port of --live; 0 for any.")] = 0,
) -> None:
    """Write a sweep as one HTML page: table, curves, durations, failures."""
    if live:
        if output or png:
            raise UsageError("expected --live without --output and --png, got both: name one.")
        from anydevice.sweep.page.live import live_server

        with live_server(folder, port) as server:
            print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl+C ends it)", flush=True)
            server.serve_forever()
    from anydevice.sweep.page.page import report as write_report
    from anydevice.sweep.page.page import report_picture

    print(write_report(folder, output))
    if png:
        print(report_picture(folder, png))


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
def run(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Run an unmodified program on virtual GPUs."""
    from anydevice.virtual.process.launch import main as launch

    launch(arguments or [])


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where to put the runs and the report.")] = Path(
        "anydevice-demo"
    ),
) -> None:
    """Show the devices, a sweep over them, and its report, in a minute."""
    from anydevice.demo import demo as show_all

    show_all(folder)


@app.command()
def bench(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND", help="matmul, product, convolution, transfer; training."),
    ] = None,
    device: Annotated[
        list[str] | None, typer.Option("--device", help="A device to measure; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write an HTML page.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Measure everything, even what is slow.")
    ] = False,
) -> None:
    """Measure CPU against GPU: how fast each does the same work."""
    from anydevice.bench.page import check_page, write_page
    from anydevice.bench.suite import bench as measure
    from anydevice.tables import show

    if kinds == ["training"]:
        if report:
            raise UsageError(
                "expected no --report for training: `anydevice report FOLDER` writes its page."
            )
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
def plan(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Predict whether a program fits a GPU, which batch fits, and the time of a step."""
    from anydevice.plan.command import main as plan_program

    try:
        plan_program(arguments or [])
    except SystemExit as end:
        sys.stdout.flush()
        _end(int(end.code or 0))  # tearing torch down would take a fifth of a plan's time


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
def check(arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
    """Find device mistakes and hidden costs of a program, by line."""
    from anydevice.check.command import main as check_program

    try:
        check_program(arguments or [])
    except SystemExit as end:
        sys.stdout.flush()
        _end(int(end.code or 0))


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="A TOML file with the experiment and its runs.")],
    folder: Annotated[Path | None, typer.Option(help="Where to put the records.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many runs at a time.")] = None,
    gpus: Annotated[
        float | None, typer.Option(help="GPUs for each run, such as 1, 2 or 0.5.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do runs again that failed.")
    ] = False,
) -> None:
    """Do many runs of one experiment; runs that are done are kept."""
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
    sort: Annotated[
        str | None, typer.Option(help="A column, best first; -NAME reverses it.")
    ] = None,
    epochs: Annotated[bool, typer.Option("--epochs", help="Show a line for each epoch.")] = False,
    compare: Annotated[
        str | None, typer.Option(help="Show these runs side by side, such as 1,4.")
    ] = None,
    importance: Annotated[
        bool, typer.Option("--importance", help="Show how much each parameter matters.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program.")] = False,
) -> None:
    """Compare the runs of a sweep."""
    from anydevice.sweep.results.results import Results
    from anydevice.tables import show

    if json + importance + bool(compare) > 1:
        raise UsageError("expected one of --json, --compare and --importance: name one.")
    results = Results.of(folder)
    if compare:
        show(results.compare(*compare.split(",")))
    elif importance:
        from anydevice.sweep.results.comparing import importance_table

        by = sort.removeprefix("-") if sort else None
        show(importance_table(results.importance(by), results.judged(by)))
    elif json:
        print(results.to_json())
    else:
        show(results.shown(sort, every_epoch=epochs))
    sys.exit(bool(results.damaged))


@app.command()
def note(
    folder: Annotated[Path, typer.Argument(help="The folder of a sweep.")],
    run: Annotated[str, typer.Argument(help="The number of a run, or its name.")],
    text: Annotated[str | None, typer.Argument(help="A note about it.")] = None,
    name: Annotated[str | None, typer.Option(help="A name for the run.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be repeated.")] = None,
) -> None:
    """Give a run of a sweep a name, tags or a note."""
    from anydevice.sweep.results.results import Results
    from anydevice.tables import show_text

    notes = Results.of(folder).annotate(run, name=name, tags=tag, note=text)
    show_text(f"{notes.name or f'run {run}'}: {', '.join(notes.tags)}  {notes.note}".rstrip())


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
    except BrokenPipeError:  # the reader, such as `| head`, has gone
        _end(1)
    except OSError as error:  # such as a full disk under a redirection
        answers = sys.argv[1:2] in (["plan"], ["check"])  # whose 1 is the answer no
        _end(2 if answers else 1, f"anydevice: {error}")


def _end(code: int, sentence: str = "") -> NoReturn:
    """End at once, also where stdout is broken and the flush at exit would fail again."""
    if sentence:
        print(sentence, file=sys.stderr, flush=True)
    os._exit(code)
