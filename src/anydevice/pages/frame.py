"""The frame of every page: head, style and script in one file, barred from any network."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files

SCRIPTS = ("draw.js", "chart.js")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(
    title: str,
    body: str,
    *,
    data: object = None,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> bytes:
    """A whole page as UTF-8. Users' texts are safe in `title` and `data`, and nowhere else.

    The scripts follow those of all pages in one module, and read `data` with `embedded()`.
    """
    script = "\n".join([*(resource("anydevice.pages", name) for name in SCRIPTS), *scripts])
    text = _PAGE.format(
        policy=_policy(script),
        title=escape(title),
        style="\n".join([resource("anydevice.pages", "frame.css"), *styles]),
        body=body,
        data=embedded(data),
        script=script,
    )
    return text.encode("utf-8", "replace")


def embedded(data: object) -> str:
    """JSON that cannot end the script element around it, no matter what texts it has."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def resource(package: str, name: str) -> str:
    """The text of a file in a package."""
    return files(package).joinpath(name).read_text("utf-8")


def _policy(script: str) -> str:
    """No network at all, and no script but this one."""
    digest = b64encode(sha256(script.encode()).digest()).decode()
    scripts = f"script-src 'sha256-{digest}'"
    return f"default-src 'none'; {scripts}; style-src 'unsafe-inline'; img-src data:"
