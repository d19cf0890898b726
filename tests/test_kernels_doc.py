"""docs/kernels.md: its figures are those of the newest stored run that has the rungs, its quotations are the source's, its rungs exist."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from recorded_runs import cell
from script_modules import script
from support import candidates

from opwise.ops import Workload
from opwise.record import Record

ROOT = Path(__file__).resolve().parents[1]
QUOTED = re.compile(r"<!-- from (\S+) -->\n```\w+\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def doc() -> ModuleType:
    return script("kernels_doc")


def run_of(doc: ModuleType, us: float, **changed: object) -> list[Record]:
    """Every rung of every ladder at each of its workloads, `us` for the one to use and twice that for each rung below."""
    made = []
    for ladder in doc.LADDERS:
        backend = ladder.name.split("/")[0]
        for height, variant in enumerate(reversed(ladder.rungs)):
            for workload in map(Workload.parse, ladder.workloads):
                record = cell(backend, us * 2**height, op=workload.op, shape=workload.shape, variant=variant, dtype=workload.dtype, sol=0.5)
                made.append(replace(record, **changed))  # type: ignore[arg-type]
    return made


def test_the_page_holds_what_the_newest_run_says(doc: ModuleType) -> None:
    page = doc.PAGE.read_text()
    assert page == doc.filled(page, doc.recorded()), "run `python scripts/kernels_doc.py`"


def test_every_rung_has_a_figure_and_every_ladder_a_table(doc: ModuleType) -> None:
    named = [(kind, name) for _, kind, name, *_ in doc.BLOCK.findall(doc.PAGE.read_text())]
    wanted = [("table", x.name) for x in doc.LADDERS] + [("figure", x.rung(v)) for x in doc.LADDERS for v in x.rungs]
    assert sorted(named) == sorted(wanted)


def test_the_rungs_are_variants(doc: ModuleType) -> None:
    known = {c.name for c in candidates()}
    absent = {c.name for c in candidates() if c.problem}  # a backend that is missing here has no variants to be asked for
    for ladder in doc.LADDERS:
        assert ladder.name in known
        assert ladder.name in absent or {ladder.rung(v) for v in ladder.rungs} <= known


def test_what_is_quoted_stands_in_the_source() -> None:
    quoted = QUOTED.findall((ROOT / "docs" / "kernels.md").read_text())
    assert quoted
    for name, lines in quoted:
        source = [line.strip() for line in (ROOT / name).read_text().splitlines()]
        wanted = [line.strip() for line in lines.splitlines()]
        places = [i for i, line in enumerate(source) if line == wanted[0]]
        assert any(source[i : i + len(wanted)] == wanted for i in places), f"{name} no longer has {lines}"


def test_figures_are_of_the_newest_whole_run_and_say_what_a_rung_gains(doc: ModuleType) -> None:
    old, new = run_of(doc, 10.0), run_of(doc, 30.0)
    torn = run_of(doc, 70.0)[:-1]
    page = doc.filled(doc.PAGE.read_text(), [old, new, torn])
    assert doc.NOT_YET not in page
    last = doc.LADDERS[-1]
    assert page.count(f"`{last.workloads[0]}`: 30 us, SOL 0.50, 2.00x;") == 1, "of the ladder that the last run has in part: the one before"
    first = doc.LADDERS[0]
    lowest = 70 * 2 ** (len(first.rungs) - 1)
    assert f"`{first.workloads[0]}`: {lowest} us, SOL 0.50;" in page, "the lowest rung has nothing to be compared with"
    assert doc.NOT_YET in doc.filled(page, [run_of(doc, 5.0, stand_in="interpreter")]), "a stand-in's times mean nothing"


def test_a_mark_that_names_no_rung_is_an_error(doc: ModuleType) -> None:
    with pytest.raises(KeyError, match="which is no rung of"):
        doc.filled(f"<!-- figure {doc.LADDERS[0].name}:nonsense -->\n<!-- end -->", [])
