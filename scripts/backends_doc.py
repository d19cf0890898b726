"""Writes the tables of docs/backends.md: `python scripts/backends_doc.py [RUN…]`, parts of names of runs below results and plugins/results.

Speed: of each op the geometric mean of the share of the limit (SOL, full clock) over the workloads that every backend has a right answer
for, unnamed variants; of the last given run that has the cell. Costs: medians over these workloads, and the longest first call that any of
the runs has, which is that of a process's first op. Lines: code without comments, docstrings and blank lines, ladders left out; CUDA C++ is
counted for both backends that compile it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from opwise.backends import OURS
from opwise.library import find
from opwise.ops import OURS as OPS
from opwise.record import Interval, Record, read
from opwise.seeds.models import CODE, code_lines

ROOT = Path(__file__).resolve().parents[1]
PAGE, RUNS = ROOT / "docs" / "backends.md", ROOT / "plugins" / "results"
BACKENDS = ROOT / "src" / "opwise" / "backends"
BLOCK = re.compile(r"(<!-- (speed|cost|lines) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def folders(backend: str) -> list[Path]:
    """Where a backend's code lies; of one that is no package here, the plugin's."""
    if not (BACKENDS / backend).exists():
        return sorted(ROOT.glob(f"plugins/opwise-{backend}/src/*"))
    shared = ["cuda_src"] if backend in ("torch_inline", "cupy_raw") else []
    return [BACKENDS / name for name in (*shared, backend)]


def lines(backend: str) -> dict[str, int]:
    """Op -> lines of its own files; "shared": all others."""
    found = dict.fromkeys((*OPS, "shared"), 0)
    for folder in folders(backend):
        for path in (path for path in sorted(folder.rglob("*")) if path.suffix in CODE):
            parts = path.relative_to(folder).parts
            if not any("ladder" in part for part in parts):
                owner = next((op for op in OPS if re.split(r"[_.]", parts[0])[0] == op), "shared")
                found[owner] += code_lines(path)
    return found


def records(run: str) -> list[Record]:
    return [r for r in read(find(run, RUNS)) if not r.variant and r.status == "ok" and r.op in OPS]


def table(head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    cells = [f"| {name} | {' | '.join(row)} |" for name, row in rows.items()]
    return "\n".join([f"| backend | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|", *cells]) + "\n"


def speed(found: Mapping[str, Mapping[str, Record]], common: set[str]) -> str:
    counts = {op: sum(w.startswith(f"{op}/") for w in common) for op in OPS}
    rows = {}
    for backend, records in found.items():
        sols = {op: [r.sol for w in common if (r := records[w]).op == op and r.sol] for op in OPS}
        rows[backend] = [f"{geometric_mean(shares):.2f}" if shares else "" for shares in sols.values()]
    return table([f"{op} ({n})" for op, n in counts.items()], rows)


def cost(found: Mapping[str, Mapping[str, Record]], common: set[str], every: Sequence[Record]) -> str:
    def told(times: Sequence[Interval | None]) -> str:
        known = [t.median for t in times if t]
        return f"{median(known):.1f}" if known else "n/a"

    def longest(times: Iterable[float | None]) -> str:
        known = [t for t in times if t is not None]
        return f"{max(known):.1f}" if known else "n/a"

    rows = {}
    for backend, mine in found.items():
        here, first = [mine[w] for w in sorted(common)], [r for r in every if r.backend == backend]
        rows[backend] = [told([r.launch_us for r in here]), told([r.call_us for r in here]),
                         longest(r.compile_cold_s for r in first), longest(r.compile_cached_s for r in first)]  # fmt: skip
    return table(["launch us", "call us", "first call s, caches empty", "full"], rows)


def main(runs: Sequence[str]) -> None:
    every = [r for run in runs for r in records(run)]
    found: dict[str, dict[str, Record]] = {}
    for r in every:
        found.setdefault(r.backend, {})[str(r.workload)] = r
    common = set.intersection(*(set(mine) for mine in found.values())) if found else set()
    plugins = [path.parents[2].name.removeprefix("opwise-") for path in ROOT.glob("plugins/opwise-*/src/*/softmax.py")]
    counted = {backend: [str(n) for n in lines(backend).values()] for backend in (*OURS, *plugins)}
    made = {"speed": speed(found, common), "cost": cost(found, common, every)} if found else {}
    made["lines"] = table([*OPS, "shared"], counted)
    PAGE.write_text(BLOCK.sub(lambda block: f"{block[1]}{made.get(block[2], block[3])}{block[4]}", PAGE.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
