"""What the site has beside docs/: the README as its first page, CONTRIBUTING, CHANGELOG, and the reference, made from the code.

A hook of mkdocs. A link to a file that is no page of the site becomes its text.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click

from opwise.cli import app
from opwise.record import Interval, Record

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
FIELD = re.compile(r"^    (\w+): ([^=#\n]+?)(?: = [^#\n]*?)?(?:  # (.*))?$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for uri, name in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    files.append(File.generated(config, "reference/records.md", content=records()))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    place = PAGES.get(page.file.src_uri) or f"docs/{page.file.src_uri}"
    homes = {f"docs/{uri}": uri for uri in files.src_uris} | {name: uri for uri, name in PAGES.items()}

    def linked(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), found[3]))
        if target not in homes:
            return found[2]
        to = posixpath.relpath(homes[target], posixpath.dirname(page.file.src_uri) or ".")
        return f"{found[1]}[{found[2]}]({to}{found[4] or ''})"

    return LINK.sub(linked, markdown)


def commands() -> str:
    """Every command with its arguments and options, as its --help has them."""
    command = typer.main.get_command(app)
    return get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="opwise"), name="opwise", title="Commands")


def records() -> str:
    """The fields of a record, with what its source says of them."""
    parts = ["# Records\nA stored run holds one JSON object a line: first what was asked, then a record a cell.\n"]
    for kind in (Record, Interval):
        text = inspect.getsource(kind)
        body = text[text.index('"""', text.index('"""') + 3) + 3 :]
        rows = [f"| `{name}` | {of.replace(' | ', ' or ')} | {said} |" for name, of, said in FIELD.findall(body)]
        parts += [f"## {kind.__name__}\n{inspect.getdoc(kind)}\n", "| field | type | |\n|---|---|---|\n" + "\n".join(rows) + "\n"]
    return "\n".join(parts)
