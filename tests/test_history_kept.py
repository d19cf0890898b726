"""The history that is kept under results/: of today's benchmarks, and of the kernels that the README quotes."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import needs

from opwise.backends import BACKENDS
from opwise.library import find
from opwise.measure.device import slug
from opwise.ops import OPS
from opwise.provenance import source
from opwise.record import read

needs("asv_runner")
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "asv"


@pytest.fixture(autouse=True)
def _suite_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def load(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def test_what_is_stored_is_of_today_s_versions_of_the_benchmarks() -> None:
    """asv shows no figure of another version: it would be a point that nobody sees."""
    known = {name: benchmark["version"] for name, benchmark in load(RESULTS / "benchmarks.json").items() if name != "version"}
    for name, version in known.items():
        module, class_name, method = name.split(".")
        cls = getattr(importlib.import_module(f"benchmarks.{module}"), class_name)
        assert version == getattr(getattr(cls, method), "version", cls.version), f"{name}: asv run anything rewrites benchmarks.json"
    for path in RESULTS.glob("*/*-*.json"):
        kept = load(path)
        at = kept["result_columns"].index("version")
        of_others = {name: columns[at] for name, columns in kept["results"].items() if columns[at] != known.get(name)}
        assert not of_others, path.name


def test_the_page_of_regressions_judges_times_spills_and_bits_and_nothing_else() -> None:
    from asv.config import Config

    not_judged = Config.load(str(ROOT / "asv.conf.json")).regressions_first_commits
    names = [f"{name}('triton_jit', '4096x4096', 'float16')" for name in load(RESULTS / "benchmarks.json") if ".track_" in name]
    judged = {name.split("(")[0].split(".")[-1] for name in names if not any(re.match(pattern, name) for pattern in not_judged)}
    assert judged == {"track_kernel_cold", "track_kernel_capped", "track_spill_bytes", "track_not_repeatable", "track_batch_variant"}


def test_the_kernels_that_the_readme_quotes_are_in_the_history_or_said_to_be_missing() -> None:
    """Without a GPU the history cannot follow a new table: until it does, the README says where it ends."""
    quoted = re.search(r"<!-- opwise show (\S+) --markdown -->", (ROOT / "README.md").read_text())
    assert quoted
    records = read(find(quoted[1], ROOT / "results"))
    carried = importlib.import_module("benchmarks._carried")
    folder = ROOT / "results" / "history" / slug({"device": records[0].device})
    kept = {
        (*cell.split("/")[:2], facts["source"]) for path in folder.glob("*.json.gz") for cell, facts in carried.read(path)["cells"].items()
    }
    of_today = {(r.backend, r.op) for r in records if r.source and r.source == source(r.backend, r.op)}
    missing = {(b, op) for b, op in of_today if (op, b, source(b, op)) not in kept}
    said = "it lacks the table's kernels" in " ".join((ROOT / "README.md").read_text().split())
    assert said == bool(missing), f"make history, on a GPU, or say in the README that the history lacks {sorted(missing)}"
    assert of_today <= {(b, op) for b in BACKENDS for op in OPS}
