"""Draws the pictures of README.md and docs/: what commands print in a terminal, light and dark.

python docs/pictures.py            # all of them; or name some: python docs/pictures.py run
"""

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
WIDTH = 90

# Background, text, then black, red, green, yellow, blue, magenta, cyan and white, as on GitHub.
LIGHT = "f6f8fa 1f2328 1f2328 cf222e 1a7f37 9a6700 0969da 8250df 1b7c83 6e7781"
DARK = "161b22 e6edf3 6e7681 ff7b72 3fb950 d29922 58a6ff bc8cff 39c5cf b1bac4"

# As rich's own, but with the fonts of the reader's machine, and without a window around it.
FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
role="img" aria-label="The output of an anydevice command">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre;
}}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="BACKGROUND" width="{width}" height="{height}" rx="10"/>
<g transform="translate(9, 18)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Picture:
    """A command, as it is typed in examples/, and what is shown of what it prints.

    Args:
        name: The name of its files.
        command: The command.
        lines: How many lines are shown.
        quiet: Standard output alone is shown. On a slow machine there would be a line about that.
    """

    name: str
    command: str
    lines: int = 100
    quiet: bool = False

    def printed(self) -> list[str]:
        """What the command prints in a terminal, with its colours."""
        environment = os.environ | {
            "FORCE_COLOR": "1",
            "COLUMNS": str(WIDTH),
            "PYTHONUNBUFFERED": "1",
        }
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(self.command)],
            cwd=ROOT / "examples",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if self.quiet else subprocess.STDOUT,
            text=True,
        )
        if done.returncode > 1:
            raise SystemExit(f"{self.command} failed:\n{done.stdout}{done.stderr or ''}")
        return done.stdout.strip("\n").splitlines()


PICTURES = [
    Picture(
        "plan",
        "anydevice plan --gpu t4 --gpu rtx-4090 --gpu a100-80gb --batch-arg --batch-size gpt.py",
        lines=24,
        quiet=True,
    ),
    Picture("run", "anydevice run --gpu t4 gpt.py --layers 2 --width 64 --context 64"),
]


def theme_of(colours: str) -> TerminalTheme:
    """A theme from hexadecimal colours: the background, the text, and the eight of a terminal."""
    back, text, *eight = [tuple(bytes.fromhex(colour)) for colour in colours.split()]
    return TerminalTheme(back, text, eight)


def drawn(picture: Picture, printed: list[str], colours: str) -> str:
    """The SVG of a command and what it printed."""
    console = Console(
        record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.assemble(("$ ", "green"), (picture.command, "bold")))
    for line in printed[: picture.lines]:
        console.print(Text.from_ansi(line))
    if len(printed) > picture.lines:
        console.print(Text("…", "dim"))
    return console.export_svg(
        theme=theme_of(colours),
        code_format=FORMAT.replace("BACKGROUND", f"#{colours.split()[0]}"),
        unique_id=f"anydevice-{picture.name}",
    )


def main(names: list[str]) -> None:
    """Runs each command once, and writes its two pictures."""
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        if names and picture.name not in names:
            continue
        printed = picture.printed()
        for shade, colours in (("light", LIGHT), ("dark", DARK)):
            path = FOLDER / f"{picture.name}-{shade}.svg"
            path.write_text(drawn(picture, printed, colours), "utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
