"""What the compilers make of every kernel for GPUs that nobody here has: the tables of docs/inspecting.md.

    python scripts/compile_facts.py                        compiles everything (8 minutes of one core), prints the tables
    python scripts/compile_facts.py --write                puts them into docs/inspecting.md, between their marks
    python scripts/compile_facts.py ROWS.jsonl … --write   from what `opwise inspect BACKEND --variants --arch … --json` printed

Exit status: 0, or 1 where a kernel that an architecture can have spills or computes in double and tests/kernel_facts.py does not list it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from kernel_facts import KNOWN  # noqa: E402

from opwise.inspecting.compilers import COMPILERS  # noqa: E402
from opwise.ops.spec import DTYPES  # noqa: E402

PAGE = ROOT / "docs" / "inspecting.md"
BEGIN, END = "<!-- scripts/compile_facts.py --write -->\n", "<!-- end -->\n"
ARCHITECTURES = ("sm_75", "sm_86", "sm_89", "sm_120")  # those of `opwise inspect` that tests/test_compile.py does not compile for
SUPPORTED = 80  # of older ones what compiles is shown, spills and all: opwise does not run there
Row = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="*", help="JSON lines of opwise inspect; without, everything is compiled")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    lines = [line for path in given.rows for line in path.read_text(encoding="utf-8").splitlines()] if given.rows else list(compiled())
    rows = sorted(map(json.loads, lines), key=lambda row: (list(COMPILERS).index(backend_of(row)), number(row["arch"])))
    unlisted = sorted({f"{r['implementation']} {r['kernel']} on {r['arch']}: {what}" for r in rows for what in blemishes(r)
                       if number(r["arch"]) >= SUPPORTED and not known(r, what)})  # fmt: skip
    text = "\n".join([*overview(rows), "", *troubles(rows)]) + "\n"
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    else:
        sys.stdout.write(text)
    for line in unlisted:
        print(f"not listed in tests/kernel_facts.py: {line}", file=sys.stderr)
    return 1 if unlisted else 0


def compiled() -> Iterable[str]:
    """A backend and architecture at a time, each in a process of its own."""
    for backend in COMPILERS:
        for arch in ARCHITECTURES:
            command = [sys.executable, "-m", "opwise", "inspect", backend, "--variants", "--arch", arch, "--json"]
            done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
            yield from done.stdout.splitlines()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def backend_of(row: Row) -> str:
    return str(row["implementation"]).partition("/")[0]


def number(arch: str) -> int:
    return int(arch.removeprefix("sm_"))


def blemishes(row: Row) -> list[str]:
    """ "spill" and "double", where a kernel has them; none of one that an architecture cannot have."""
    if row["status"] != "ok":
        return []
    local = any("local" in space for space in row["accesses"])
    return ["spill"] * bool(row["spilled_bytes"] or local) + ["double"] * bool(row["classes"].get("double"))


def known(row: Row, what: str) -> bool:
    backend, _, op = row["implementation"].partition(":")[0].partition("/")
    names = (row["kernel"], f"{op}: {row['kernel']}")
    return any(k.what == what and any(k.names(backend, row["arch"], name) for name in names) for k in KNOWN)


def overview(rows: Sequence[Row]) -> list[str]:
    """A line a backend, op and dtypes: how many kernels, their registers, how many spill or cannot be had. Unnamed variants only."""
    cells: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in (row for row in rows if ":" not in row["implementation"]):
        groups[row["implementation"], row["dtype"], row["arch"]].append(row)
    for (name, dtype, arch), found in groups.items():
        cells[name, dtype][arch] = cell(found)
    lines = ["| implementation | dtypes | " + " | ".join(ARCHITECTURES) + " |", "| --- | --- |" + " --- |" * len(ARCHITECTURES)]
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    order = {dtype: i for i, dtype in enumerate(["", *DTYPES])}
    for name, dtype in sorted(cells, key=lambda key: (list(COMPILERS).index(key[0].partition("/")[0]), key[0], order[key[1]])):
        alike[name, *(cells[name, dtype].get(arch, "") for arch in ARCHITECTURES)].append(dtype or "a whole unit")
    return lines + [f"| `{key[0]}` | {', '.join(dtypes)} | {' | '.join(key[1:])} |" for key, dtypes in alike.items()]


def cell(found: Sequence[Row]) -> str:
    there = [row for row in found if row["status"] == "ok"]
    registers = sorted(row["registers"] for row in there)
    spilling = sum("spill" in blemishes(row) for row in there)
    told = [f"{len(there)}: {registers[0]}" + f"-{registers[-1]}" * (registers[-1] != registers[0])] if there else []
    told += [f"{spilling} spill"] * bool(spilling) + [f"{len(found) - len(there)} n/a"] * (len(there) < len(found))
    return ", ".join(told)


def troubles(rows: Sequence[Row]) -> list[str]:
    """What spills or computes in double where opwise runs, and why kernels cannot be had; each once, with its architectures."""
    bad: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    missing: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for row in rows:
        for what in blemishes(row) if not row["implementation"].endswith(":mma") else []:  # whose kernels are the unnamed one's
            size = f"{row['spilled_bytes'] or row['stack_bytes']} bytes spilled" if what == "spill" else "double precision"
            if number(row["arch"]) >= SUPPORTED:
                bad[row["implementation"], row["kernel"], size].append(row["arch"])
        if row["status"] != "ok":
            missing[backend_of(row), row["reason"]][row["arch"]] += 1
    lines = ["| implementation | kernel | has | for |", "| --- | --- | --- | --- |"]
    lines += [f"| `{name}` | {kernel} | {what} | {', '.join(archs)} |" for (name, kernel, what), archs in bad.items()]
    lines += ["", "| backend | n/a because | kernels or units |", "| --- | --- | --- |"]
    for (backend, reason), counts in missing.items():
        lines.append(f"| `{backend}` | {reason} | {', '.join(f'{n} for {arch}' for arch, n in counts.items())} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
