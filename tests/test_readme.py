"""What the README and the docs say is true: blocks run, commands, names and links exist."""

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

import anydevice as ad

from .forked import python

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
VENV = ROOT / ".venv" / "bin"
LONG = ("bench-1", "fuse-1", "sweep-1", "tutorial-2")  # blocks, by page and number


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"(?<!-->\n)^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def python_blocks() -> list[object]:
    """Each with its page and number; what takes long is done in small by tests of its room."""
    found: list[object] = []
    for path in PAGES:
        for number, code in enumerate(blocks(path.read_text("utf-8"), "python"), 1):
            name = f"{path.stem}-{number}"
            marks = [pytest.mark.long] if name in LONG else []
            found.append(pytest.param(code, marks=marks, id=name))
    return found


@pytest.mark.parametrize("code", python_blocks())
def test_a_python_block_runs_when_it_is_pasted_alone(code: str, tmp_path: Path) -> None:
    (tmp_path / "pasted.py").write_text(code, "utf-8")
    shutil.copy(ROOT / "examples" / "gpt.py", tmp_path)  # the tutorial's
    done = python("pasted.py", cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr  # as Triton says of what is left at the end of a process


def test_docs_import_nothing_deep() -> None:
    code = "\n".join(code for path in PAGES for code in blocks(path.read_text("utf-8"), "python"))
    nodes = ast.walk(ast.parse(code))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in names if str(name).startswith("anydevice.")]


def command_lines() -> list[list[str]]:
    """Lines of the docs that begin with anydevice: in blocks, and in backquotes."""
    texts = [path.read_text("utf-8") for path in TEXTS]
    inline = chain.from_iterable(re.findall(r"`(anydevice [^`]*)`", text) for text in texts)
    shown = (
        block for text in texts for block in re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M)
    )
    lines = (line.removeprefix("$ ") for block in shown for line in block.splitlines())
    typed = (line for line in lines if line.startswith("anydevice "))
    return [shlex.split(line, comments=True) for line in chain(inline, typed)]


@cache
def help_of(command: str) -> str:
    return python("-m", "anydevice", command, "--help").stdout


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_a_command_of_the_docs_exists_with_its_options(words: list[str]) -> None:
    command, rest = words[1], words[2:]
    if command == "--help":
        return
    help_text = help_of(command)
    assert help_text, f"anydevice {command} is no command"
    own = [word for word in rest if not word.endswith(".py")]
    if command in ("run", "plan", "check"):  # what follows the program is the program's
        own = []
        for word in rest:
            if word.endswith(".py") or word in ("-m", "torchrun", "python"):
                break
            own.append(word)
        values = [at + 1 for at, word in enumerate(own) if word == "--vary"]
        own = [word for at, word in enumerate(own) if at not in values]
        if "--batch-arg" in own:
            del own[own.index("--batch-arg") + 1 :]
    for option in (word.partition("=")[0] for word in own if word.startswith("-")):
        assert option in help_text, f"anydevice {command} has no {option}"


def test_the_commands_of_the_table_run() -> None:
    table = (DOCS / "commands.md").read_text("utf-8")
    commands = re.findall(r"^\| `(anydevice [^`]*)` \|", table, re.MULTILINE)
    assert commands
    for command in commands:
        assert python("-m", *shlex.split(command)).returncode == 0, command


def public_names() -> set[str]:
    return set(ad.__all__) - {"__version__"}


def test_every_function_of_the_table_exists_and_every_function_is_in_the_table() -> None:
    table = (DOCS / "functions.md").read_text("utf-8")
    named = set(re.findall(r"`ad\.(\w+)[(`]", table))
    assert named == public_names() - {"UsageError", "DeviceNotFound", "data", "virtual"}


def test_every_public_name_is_in_the_api_reference_and_all_that_is_there_exists() -> None:
    pages = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    named = re.findall(r"^::: anydevice\.(\S+)", pages, re.MULTILINE)
    for path in named:
        owner, _, name = path.rpartition(".")
        assert hasattr(import_module(f"anydevice.{owner}" if owner else "anydevice"), name), path
    rooms = {path.split(".")[-2] for path in named if "." in path}
    assert public_names() <= {path.rpartition(".")[2] for path in named} | rooms


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them of plain ones."""
    headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_the_links_of_a_page_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    for link in links:
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path.name}: {link}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


@pytest.mark.long
@pytest.mark.skipif(not VENV.exists(), reason="the set-up was not made by make")
def test_make_demo_runs_and_is_quick_the_second_time() -> None:
    first, done = (
        subprocess.run(["make", "demo"], cwd=ROOT, capture_output=True, text=True) for _ in range(2)
    )
    assert first.returncode == done.returncode == 0
    assert "pip install" not in done.stdout
    assert "PyTorch" in done.stdout
    assert "The 12 runs in build/demo are done" in done.stdout
    assert (ROOT / "build" / "demo" / "report.html").read_text().startswith("<!doctype html>")


def test_both_commands_of_the_readme_are_targets() -> None:
    lines = [line for block in blocks(README, "bash") for line in block.splitlines()]
    commands = [line.partition("#")[0].split() for line in lines if line.startswith("make ")]
    assert commands == [["make", "demo"], ["make", "test"]]
    for command in commands:
        dry = [*command, "--dry-run"]
        assert subprocess.run(dry, cwd=ROOT, capture_output=True).returncode == 0


def test_every_room_is_in_the_tree_of_the_readme() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "anydevice").glob("*/__init__.py")}
    tree = README.partition("src/anydevice/\n")[2].partition("\nexamples/")[0]
    assert rooms == set(re.findall(r"(\w+)/ {2,}", tree))


def test_every_extra_is_in_the_table_of_the_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    page = (DOCS / "install.md").read_text("utf-8")
    table = page.partition("| extra |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?`) \|", table, re.M)))
    assert set(project["optional-dependencies"]) == set(named)


def test_the_picture_of_the_rooms_shows_the_order_that_contributing_has() -> None:
    rooms = loaded(DOCS / "rooms.py")
    for shade in rooms.SHADES:
        drawn = (DOCS / "pictures" / f"rooms-{shade}.svg").read_text("utf-8")
        assert drawn == rooms.drawn(shade), "draw it again: python docs/rooms.py"


def test_the_files_that_the_docs_name_exist() -> None:
    """Full paths from the root, from src/anydevice, or a file's own name."""
    there = [path.as_posix() for room in ("src", "tests") for path in (ROOT / room).rglob("*.*")]
    for page in (DOCS / "architecture.md", DOCS / "how-virtual-gpus-work.md"):
        named = re.findall(r"`([\w/]+\.(?:py|cpp))(?:: \w+)?`", page.read_text("utf-8"))
        assert named
        for name in named:
            assert any(path.endswith(f"/{name}") for path in there), f"{page.name}: {name}"


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_the_pictures_show_what_the_commands_print_today() -> None:
    """Figures apart, which differ a little from machine to machine."""
    pictures = loaded(DOCS / "pictures.py")
    for picture in pictures.PICTURES:
        drawn = pictures.drawn(picture, picture.printed(), pictures.LIGHT)
        there = (DOCS / "pictures" / f"{picture.name}-light.svg").read_text("utf-8")
        assert letters(drawn) == letters(there), f"python docs/pictures.py {picture.name}"


def letters(svg: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", " ".join(re.findall(r"<text[^>]*>([^<]*)<", svg)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the README's GPU is a CUDA one")
def test_the_note_is_as_the_readme_shows_it(tmp_path: Path) -> None:
    program = blocks(README, "python")[0].replace("    batch = ad.move(batch, device)\n", "")
    machine = ad.virtual.enabled()
    if machine:  # the line numbers stay: the program has an empty line there
        program = program.replace("\n\ndevice =", f"\nad.virtual.enable({machine.gpus})\ndevice =")
    (tmp_path / "train.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True
    )
    shown = blocks(README, "text")[0].splitlines()
    for line in shown[1:]:
        assert line in done.stderr.splitlines()
