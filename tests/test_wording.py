"""No text of the project uses wording that tests/wording.toml bans."""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "anydevice"
RULES = tomllib.loads((ROOT / "tests" / "wording.toml").read_text("utf-8"))
PROSE = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@dataclass(frozen=True)
class Text:
    """A piece of text, the line where it begins, and whether only developers read it."""

    line: int
    text: str
    internal: bool = False


@dataclass(frozen=True)
class Banned:
    """One entry of the list: what to look for, and what to write."""

    pattern: re.Pattern[str]
    instead: str
    docstrings: bool

    @classmethod
    def of(cls, rule: dict[str, object]) -> "Banned":
        pattern = re.compile(rf"\b(?:{rule['pattern']})(?!\w)", re.IGNORECASE)
        return cls(pattern, str(rule["instead"]), bool(rule.get("docstrings")))


BANNED = [Banned.of(rule) for rule in RULES["banned"]]


def texts_of_prose(source: str) -> Iterator[Text]:
    """Each line; of a block of code only the comments, and what is printed in a `text` block."""
    fence = None
    for number, line in enumerate(source.splitlines(), 1):
        opening = re.match(r"\s*```(\w*)", line)
        if opening:
            fence = None if fence is not None else opening[1]
        elif fence in (None, "text"):
            yield Text(number, line)
        else:
            yield Text(number, line.partition("#")[2])


def docstrings_of(tree: ast.Module) -> set[int]:
    """The ids of the nodes that are docstrings, also of attributes: strings that stand alone."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {id(node) for node in alone if isinstance(node, ast.Constant)}


def texts_of_python(source: str) -> Iterator[Text]:
    """Docstrings, strings (the parts of f-strings too) and comments."""
    tree = ast.parse(source)
    docstrings = docstrings_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            docstring = id(node) in docstrings
            if docstring or " " in node.value.strip():
                yield Text(node.lineno, node.value, internal=docstring)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string, internal=True)


def texts_of_c(source: str) -> Iterator[Text]:
    """Comments and strings of C++ and JavaScript, line by line."""
    for number, line in enumerate(source.splitlines(), 1):
        for string in re.findall(r'"((?:[^"\\]|\\.)* (?:[^"\\]|\\.)*)"', line):
            yield Text(number, string)
        comment = re.search(r"(?:^|\s)//(.*)|/\*(.*)|^\s*\*(.*)", line)
        if comment:
            yield Text(number, comment[comment.lastindex or 0], internal=True)


def texts_of_toml(source: str) -> Iterator[Text]:
    for number, line in enumerate(source.splitlines(), 1):
        yield Text(number, line)


READERS = {
    ".md": texts_of_prose,
    ".py": texts_of_python,
    ".cpp": texts_of_c,
    ".h": texts_of_c,
    ".js": texts_of_c,
    ".toml": texts_of_toml,
}


def findings(path: Path, source: str | None = None) -> list[str]:
    """A line for each piece of banned wording in a file."""
    source = path.read_text("utf-8") if source is None else source
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    found = []
    for text in READERS[path.suffix](source):
        plain = re.sub(r"(`+).*?\1", "``", text.text, flags=re.DOTALL)
        for banned in BANNED:
            if banned.docstrings and text.internal:
                continue
            for match in banned.pattern.finditer(plain):
                line = text.line + plain.count("\n", 0, match.start())
                found.append(f"{name}:{line}: {match[0]!r}: write: {banned.instead}")
    return found


def files_under(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in READERS)


def is_clean_already(path: Path) -> bool:
    """Whether the file is not below a path of the list `left_out`."""
    left = {ROOT / name for name in RULES["left_out"]}
    return left.isdisjoint([path, *path.parents])


def test_docs_examples_and_source_use_plain_wording() -> None:
    paths = [*PROSE, *files_under(ROOT / "examples"), *files_under(SOURCE)]
    found = [line for path in filter(is_clean_already, paths) for line in findings(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("page.md", "Three runs.\n\nMend: move it.\n"),
        ("page.md", "```text\nanydevice: Mend: y\n```\n"),
        ("module.py", 'def f():\n    """Say it.\n\n    It goes on.\n    """\n'),
        ("module.py", 'raise ValueError(f"{x} was foretold, got {y}.")\n'),
        ("module.py", "x = 1  # as reckoned above\n"),
        ("kernel.cpp", "int x;  // whatever it holds\n"),
        ("kernel.cpp", 'fail("expected a tensor, let alone two");\n'),
        ("draw.js", 'say("the rest is left out");\n'),
    ],
)
def test_banned_wording_is_found(name: str, source: str) -> None:
    assert len(findings(Path(name), source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("page.md", "Besides `remedies=True`, recommended: it goes on the GPU.\n"),
        ("page.md", "```python\nremedies = words\n```\n"),
        ("module.py", 'words = data["words"]\n'),
        ("module.py", '"""The remedies that were tried."""\n'),
        ("kernel.cpp", "int words = rest * told;\n"),
    ],
)
def test_code_and_ordinary_wording_pass(name: str, source: str) -> None:
    assert not findings(Path(name), source)


if __name__ == "__main__":
    roots = [Path(word).resolve() for word in sys.argv[1:]] or [SOURCE]
    files = [file for root in roots for file in (files_under(root) if root.is_dir() else [root])]
    lines = [line for file in files for line in findings(file)]
    print(*lines, f"{len(lines)} places", sep="\n")
    sys.exit(bool(lines))
