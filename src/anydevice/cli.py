"""The command line: one function a command. torch is imported inside them, so --help is quick."""

import sys
from typing import Annotated

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
    from anydevice.tables import show

    if json + issue + known > 1:
        raise UsageError("expected one of --json, --issue and --known, got several: name one.")
    if known:
        from anydevice.devices.catalogue import known_table

        return show(known_table())
    from anydevice.devices.report import devices as look

    found = look()
    if json:
        print(found.to_json())
    elif issue:
        print(found.issue_block())
    else:
        show(found)


def main() -> None:
    """Run the command; wrong use is one sentence and exit code 2, never a traceback."""
    try:
        app()
    except UsageError as error:
        print(f"anydevice: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader (a `| head`) has gone
        sys.exit(1)
