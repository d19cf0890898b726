"""What became slower, and what changed there: the machine code, a library, or nothing. A plugin of asv for its page of regressions.

Each entry says it, and leads to a page with the commits and the files of kernels that they changed. What a cell was is in
results/history/<machine>/<commit>.json.gz (benchmarks/_carried.py). asv's page has no place for it: its regressions.js gets some lines
more, for the version of asv that constraints.txt pins.
"""

from __future__ import annotations

import ast
import html
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asv.console import log
from asv.publishing import OutputPublisher

from asv_inplace import KERNELS
from benchmarks._carried import read

ROOT = Path(__file__).resolve().parent
HOOK = "row.append(commit_td);"
SHOWN = """if (item[7] && item[7][i]) {
                    commit_td.empty().append($('<a/>').attr('href', item[7][i].page).text(item[7][i].commits),
                                             $('<div class="cause"/>').text(item[7][i].cause));
                }
                """
PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto }} pre {{ background: #f4f4f4; padding: 1em }}</style>
<p><a href="../index.html#regressions">Regressions</a></p>
<h1>{title}</h1>
<ul>{causes}</ul>
<h2>Commits</h2>
<pre>{commits}</pre>
<h2>Files of kernels and ops that they changed</h2>
<pre>{files}</pre>
"""


def cause(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, cell: str) -> str:
    """What changed between two commits' files of one machine for "softmax/triton_jit/4096x4096/float16"."""
    old, new = ((data or {}).get("cells", {}).get(cell) for data in (before, after))
    if before is None or after is None or old is None or new is None:
        return "what changed was not recorded"
    libraries = [
        f"{name} {before['versions'].get(name, 'none')} -> {version}"
        for name, version in after["versions"].items()
        if before["versions"].get(name) != version
    ]
    if old["code"] and old["code"] == new["code"] and not libraries:
        return "nothing changed: the same machine code and libraries"
    said = [f"libraries: {', '.join(libraries)}"] if libraries else []
    if old["code"] and new["code"]:
        said += ["the machine code"] if old["code"] != new["code"] else ["not the machine code"]
    else:
        said += ["the sources; machine code unknown"] if old["source"] != new["source"] else ["not the sources"]
    return "changed: " + "; ".join(said)


def cell_of(entry: str) -> str:
    """ "softmax.Softmax.track_kernel_cold('triton_jit', '4096x4096', 'float16')" -> "softmax/triton_jit/4096x4096/float16"."""
    name, _, parameters = entry.partition("(")
    values = ast.literal_eval(f"({parameters.rstrip(')')},)") if parameters else ()
    return "/".join((name.partition(".")[0], *values))


class Causes(OutputPublisher):  # type: ignore[misc]
    """Run by `asv publish` behind its own pages."""

    name = "causes"

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Mapping[str, int]) -> None:
        told(Path(conf.html_dir), Path(conf.results_dir).parent / "history", revisions)


def told(html_dir: Path, store: Path, revisions: Mapping[str, int]) -> None:
    """Adds to regressions.json, for each step, {page, commits, cause}, and has the page show it."""
    path, script = html_dir / "regressions.json", html_dir / "regressions.js"
    if HOOK not in script.read_text():
        log.warning("asv's regressions.js is another one than asv_causes.py knows: entries say no cause")
        return
    script.write_text(script.read_text().replace(HOOK, SHOWN + HOOK))
    commits = {revision: commit for commit, revision in revisions.items()}
    data = json.loads(path.read_text())
    pages: dict[tuple[str, str], list[str]] = {}
    for entry in data["regressions"]:
        name, graph, _, _, _, _, jumps = entry[:7]
        machine = re.search(r"machine-([^/]+)", graph)
        folder = store / (machine[1] if machine else "")
        found = []
        for first, last, *_ in jumps or ():
            new = commits[last]
            old = commits[first] if first is not None else _measured_before(folder, last, revisions)
            of_compilers = ".Compiled." in name  # a graph is of one version of each
            why = "changed: the machine code" if of_compilers else cause(_read(folder, old), _read(folder, new), cell_of(name))
            pages.setdefault((old, new), []).append(f"{name}: {why}")
            found.append({"page": f"commits/{_named(old, new)}.html", "commits": _named(old, new), "cause": why})
        entry[7:] = [found]
    path.write_text(json.dumps(data))
    (html_dir / "commits").mkdir(exist_ok=True)
    for (old, new), causes in pages.items():
        (html_dir / "commits" / f"{_named(old, new)}.html").write_text(_page(old, new, causes))


def _named(old: str, new: str) -> str:
    return f"{old[:8]}..{new[:8]}" if old else new[:8]


def _measured_before(folder: Path, revision: int, revisions: Mapping[str, int]) -> str:
    """The newest commit before it whose cells are known; "" where there is none."""
    known = {path.name[:8] for path in folder.glob("*.json.gz")}
    before = [(number, commit) for commit, number in revisions.items() if number < revision and commit[:8] in known]
    return max(before, default=(0, ""))[1]


def _read(folder: Path, commit: str) -> dict[str, Any] | None:
    path = folder / f"{commit[:8]}.json.gz"
    return read(path) if commit and path.is_file() else None


def _page(old: str, new: str, causes: list[str]) -> str:
    before = old or f"{new}^"
    commits = _git("log", "--format=%h %cs %s", "--first-parent", f"{before}..{new}")
    files = _git("diff", "--stat=120", before, new, "--", *KERNELS)
    items = "".join(f"<li>{html.escape(cause)}</li>" for cause in causes)
    return PAGE.format(title=_named(old, new), causes=items, commits=html.escape(commits), files=html.escape(files))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "none"
