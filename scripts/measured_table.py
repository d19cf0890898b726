"""Makes the table of measured times that ships of a GPU, src/opwise/backends/gemm/measured/<device>.json, from what was timed there.

    python scripts/measured_table.py times.jsonl --commit 2882d4a
    python scripts/measured_table.py times.jsonl --commit 2882d4a --device 'NVIDIA H200' --capped two-clocks-h200.jsonl
    python scripts/measured_table.py times.jsonl --commit 2882d4a --beside new.jsonl

A line of times.jsonl is a product's, at full clock:

    {"shape": [m, k, n], "kind": "16"|"float32"|"tfloat32", "us": {"cupy_raw NAME": us, …}}

With --beside configurations that came later are added: new.jsonl has lines of scripts/two_clocks.py, another run, in which they stand
beside some that times.jsonl has. Their times are scaled by those of the latter (geometric mean).

With --capped a power-capped time is the one at full clock by the ratio of both in a line of scripts/two_clocks.py, which was another run.
(two-clocks-h100.jsonl.gz of 29f5e2c, in git's history, is not for that: its second column was hardly capped.) Of products the sets
core, layers and bars are taken: those of `random` are for judging what is chosen, which a table of their own times would make
worthless. Names that today's plans do not offer are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from opwise.backends.gemm import measured
from opwise.backends.gemm.cost import Product
from opwise.backends.gemm.gpu import HOPPER
from opwise.bars.table import WORKLOADS
from opwise.measure.device import slug
from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.tuning.matmul import offered

H100 = "NVIDIA H100 80GB HBM3"
TABLES = {"cupy_raw": "cuda_src/matmul", "numba_cuda": "numba_cuda/matmul", "triton_jit": "triton_jit/matmul"}
KINDS = {"16": "bfloat16"}  # a line's kind -> a product's
# How names read once -> today.
RENAMED = (
    (r"^(hopper_|map:)", ""),
    (r"^ptr:", "pointers_"),
    (r"/resident\b", "/persistent"),
    (r"/turned\b", "/swap_ab"),
    (r"/split(\d+)$", r"/split_k\1"),
)
Times = dict[str, dict[str, dict[str, list[float | None]]]]  # table -> workload -> configuration -> [full, capped]


def shipped() -> set[str]:
    """Rows of the products of the sets core, layers and bars."""
    known = [w for name in ("core", "layers") for w in OPS["matmul"].workloads[name]] + [w for w in WORKLOADS if w.op == "matmul"]
    return {measured.workload(w.dtype, w.shape) for w in known}


def made(lines: Iterable[Mapping[str, Any]], capped: Iterable[Mapping[str, Any]], left_out: Counter[str]) -> Times:
    """left_out counts the times that found no place, by why."""
    found: Times = {table: {} for table in TABLES.values()}
    for line in lines:
        m, k, n = line["shape"]
        product = Product(m, k, n, KINDS.get(line["kind"], line["kind"]))
        row = measured.workload(product.kind, product[:3])
        if row not in ROWS:
            left_out["of products of other sets"] += len(line["us"])
            continue
        for table, name, us in named(line["us"], product, left_out):
            found[table].setdefault(row, {})[name] = [rounded(us), None]
    for line in capped:
        workload = Workload.parse(line["workload"])
        row = measured.workload(workload.dtype, workload.shape)
        for key, (full, us) in line["times"].items():
            backend, _, name = key.partition(" ")
            times = found.get(TABLES.get(backend, ""), {}).get(row, {}).get(today(name))
            if times is not None and times[0] is not None and full is not None and us is not None:
                times[1] = rounded(times[0] * us / full)
    return found


def add_beside(found: Times, lines: Iterable[Mapping[str, Any]], left_out: Counter[str]) -> None:
    """Adds to the rows what they have no time of. A line without any configuration of the row cannot be scaled to it."""
    for line in lines:
        workload = Workload.parse(line["workload"])
        product = Product(*workload.shape, workload.dtype)  # type: ignore[call-arg]
        timed = {key: us[0] for key, us in line["times"].items() if us[0] is not None}
        of_table: dict[str, dict[str, float]] = {}
        for table, name, us in named(timed, product, left_out):
            of_table.setdefault(table, {})[name] = us
        for table, times in of_table.items():
            row = found[table].get(measured.workload(workload.dtype, workload.shape), {})
            ratios = [full / times[name] for name, (full, _) in row.items() if name in times and full is not None]
            if not ratios:
                left_out["of rows that have none of the line"] += len(times)
                continue
            scale = geometric_mean(ratios)
            row.update({name: [rounded(us * scale), None] for name, us in times.items() if name not in row})


def named(times: Mapping[str, float], product: Product, left_out: Counter[str]) -> Iterator[tuple[str, str, float]]:
    """(table, configuration, us) of what is offered today."""
    known = {backend: offered(table, product, HOPPER) for backend, table in TABLES.items()}
    for key, us in times.items():
        backend, _, name = key.partition(" ")
        name = today(name)
        if backend not in TABLES:
            left_out[f"of {key}"] += 1
        elif name in known[backend]:
            yield TABLES[backend], name, us
        else:
            left_out[f"not offered by {backend}"] += 1


def today(name: str) -> str:
    for pattern, instead in RENAMED:
        name = re.sub(pattern, instead, name)
    return name


def rounded(us: float) -> float:
    return float(f"{us:.4g}")


def written(times: Times, device: str, commit: str, folder: Path = measured.FOLDER) -> Path:
    """A line a row, so that a change shows which."""
    path = folder / f"{slug({'device': device})}.json"
    tables = []
    for table, rows in sorted(times.items()):
        lines = [f"   {json.dumps(row)}: {json.dumps(dict(sorted(names.items())))}" for row, names in sorted(rows.items())]
        tables.append(f"  {json.dumps(table)}: {{\n" + ",\n".join(lines) + "\n  }")
    head = f'{{\n "device": {json.dumps(device)},\n "commit": {json.dumps(commit)},\n "times": {{\n'
    path.write_text(head + ",\n".join(tables) + "\n }\n}\n", encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


ROWS = shipped()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--commit", required=True, help="whose kernels were timed")
    parser.add_argument("--device", default=H100, help="the GPU's whole name")
    parser.add_argument("--capped", type=Path, help="what two_clocks.py wrote; without, times at full clock alone")
    parser.add_argument("--beside", type=Path, help="what two_clocks.py wrote of later configurations beside earlier ones")
    options = parser.parse_args()
    left_out: Counter[str] = Counter()
    times = made(read(options.times), read(options.capped) if options.capped else [], left_out)
    if options.beside:
        add_beside(times, read(options.beside), left_out)
    path = written(times, options.device, options.commit)
    for table, rows in times.items():
        both = sum(us is not None for row in rows.values() for _, us in row.values())
        print(f"{table}: {len(rows)} products, {sum(map(len, rows.values()))} times at full clock, {both} power-capped")
    for why, count in left_out.most_common():
        print(f"{count} times {why} are left out", file=sys.stderr)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
