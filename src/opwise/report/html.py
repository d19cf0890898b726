"""Runs as one HTML page that opens from disk: Plotly, style, data and script are inside it, and its content policy forbids requests.

Names and reasons come from files that anyone may have written. Jinja escapes all HTML, its `tojson` all data inside a script element, and
page.js escapes Plotly's markup."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opwise.block.records import BlockRecord, newest_beside
from opwise.choosing.spread import Across
from opwise.record import Record, read
from opwise.report import bits, energy, inside
from opwise.report.figures import Figure, styles
from opwise.report.groups import in_order
from opwise.report.html_data import figure_rows, glyph
from opwise.report.html_tables import compared, described
from opwise.report.plots import figures
from opwise.report.roofs import roofs_of
from opwise.run_files import run_name

TEMPLATES = Path(__file__).parent / "page"
MOST_RUNS = 2
MOST_BYTES = 6_000_000


class MissingExtra(RuntimeError):
    """The report's libraries are not installed; the message is the remedy."""


@dataclass(frozen=True)
class Run:
    """A stored run: its name, cells and roofs, the newest block runs of its device, and other stored runs' records of its cells."""

    name: str
    records: Sequence[Record]
    roofs: Mapping[str, float]
    blocks: Sequence[Sequence[BlockRecord]] = field(default=())
    across: Across = field(default_factory=Across)

    @classmethod
    def read(cls, path: Path, stored: Sequence[Path] = ()) -> Run:
        """`stored`: the runs in which the spread of its times is looked up. Raises what record.read raises."""
        records = read(path)
        others = [other for other in stored if other.resolve() != path.resolve()]
        return cls(run_name(path), records, roofs_of(path), newest_beside(path), Across.load(records, [path, *others]))

    @property
    def device(self) -> str:
        return next((r.device for r in reversed(self.records) if r.device), "no device")

    @property
    def backends(self) -> list[str]:
        """Backends with a cell or in a block."""
        return list(dict.fromkeys((*(r.backend for r in self.records), *(r.backend for block in self.blocks for r in block))))


def drawn(runs: Sequence[Run]) -> list[list[Figure]]:
    """The figures of each run: the same set for all runs, even if only one has data."""
    any_block, any_energy = any(run.blocks for run in runs), any(energy.measured(run.records) for run in runs)
    any_bits = any(r.variant and r.bits for run in runs for r in run.records)
    return [
        [
            *figures(run.records, run.roofs),
            *([bits.prices(in_order(run.records))] if any_bits else []),
            *([energy.energies(in_order(run.records))] if any_energy else []),
            *([inside.figure(run.blocks)] if any_block else []),
        ]
        for run in runs
    ]


def page(runs: Sequence[Run]) -> str:
    """The page of one run, or of two side by side. Raises MissingExtra."""
    jinja2, plotly = _library("jinja2"), _library("plotly.offline")
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    texts: dict[str, int] = {}
    rows = figure_rows(drawn(runs), texts)
    panels = [panel for row in rows for group in row["groups"] for panel in group if panel]
    used = list(dict.fromkeys(name for run in runs for name in run.backends))
    looks = styles(used)
    return str(
        environment.get_template("page.html.j2").render(
            runs=[
                {
                    "name": run.name,
                    "device": run.device,
                    "roofs": run.roofs,
                    "blocks": inside.tables(run.blocks),
                    **described(run.records, run.across),
                }
                for run in runs
            ],
            figures=rows,
            compared=compared(runs[0].records, runs[1].records) if len(runs) == MOST_RUNS else None,
            data={"panels": panels, "texts": list(texts), "styles": {name: [looks[name].colour, looks[name].symbol] for name in used}},
            backends=[(name, looks[name].colour, glyph(looks[name])) for name in used],
            variants=any(r.variant for run in runs for r in run.records),
            plotly=plotly.get_plotlyjs(),
        )
    )


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"the report needs {name.split('.')[0]}, which is not installed: pip install 'opwise[report]'") from error
