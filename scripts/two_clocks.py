"""Which configuration of a backend's product is the quickest at full clock, and which under the power cap? Times them in both states.

    python scripts/two_clocks.py --list                                            what would be timed; needs no GPU
    python scripts/two_clocks.py --build & ... ; python scripts/two_clocks.py --out two-clocks.jsonl --seconds 500
    python scripts/two_clocks.py --only '4096x4096x4096/bfloat16' --backend numba_cuda

Products are those that `opwise bars` holds to cuBLAS's speed, in bfloat16 and TF32. Configurations are those whose predicted time is near
the least. A line of JSON a product, as soon as it is measured: configuration -> [us at full clock, us power-capped or null]. What
scripts/measured_table.py takes the power-capped times from, and what shows where a plan chooses badly.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from opwise.backends import tuned
from opwise.backends.gemm import gpu
from opwise.backends.gemm.choice import choose, predictions
from opwise.backends.gemm.gpu import Machine
from opwise.bars.table import WORKLOADS
from opwise.measure.device import Monitor
from opwise.measure.timing import Clock
from opwise.ops.spec import Workload
from opwise.runner.prepare import Unit, prepare
from opwise.tuning.bench import BASELINE, Stand, install, launches
from opwise.tuning.matmul import near, offered, product_of

TABLES = {"cupy_raw": "cuda_src/matmul", "numba_cuda": "numba_cuda/matmul", "triton_jit": "triton_jit/matmul"}
LEAST, SLOW = 2**29, 2**40  # multiply-adds: smaller products are not held back by the power cap
NEAR, MOST = 1.35, 10  # times the least predicted; configurations of a backend
BUDGET_S = 0.05
MORE = ((1024, 1024, 1024), (1536, 1536, 1536), (3072, 3072, 3072), (6144, 6144, 6144), (4096, 4096, 14336), (4096, 14336, 4096))


def products() -> list[Workload]:
    """Largest first, but for those that take seconds."""
    found = {w for w in WORKLOADS if w.op == "matmul" and w.dtype in ("bfloat16", "tfloat32") and w.shape[0] >= 64}
    found |= {Workload("matmul", shape, dtype) for dtype in ("bfloat16", "tfloat32") for shape in MORE}
    macs = {w: math.prod(w.shape) for w in found}
    return sorted((w for w in found if macs[w] >= LEAST), key=lambda w: (macs[w] > SLOW, -macs[w], str(w)))


def configurations(backend: str, workload: Workload, device: torch.device) -> tuple[str, list[str]]:
    """(what the plan chooses, what is timed), the least predicted first; ("", []) where nothing takes the product."""
    table, product = TABLES[backend], product_of(workload)
    known, numbers = offered(table, product, Machine.of(device)), gpu.of(device)
    if not known:
        return "", []
    chosen = choose(product, known, numbers, tuned.shipped(table, device)).name
    return chosen, list(dict.fromkeys([chosen, *near(predictions(product, known, numbers), NEAR, MOST)]))


class Bench:
    def __init__(self, backends: list[str], wanted: list[Workload]) -> None:
        self.device = torch.device("cuda", 0)
        self.clock = Clock(self.device, Monitor(self.device))
        names = {b: dict.fromkeys(name for w in wanted for name in configurations(b, w, self.device)[1]) for b in backends}
        self.stands = {b: Stand(TABLES[b], b, tuple(of_backend)) for b, of_backend in names.items()}
        install(tuple(self.stands.values()))

    def measure(self, workload: Workload, backends: list[str]) -> dict[str, Any]:
        """The line of one product."""
        found = {backend: configurations(backend, workload, self.device) for backend in backends}
        wanted = {f"{b} {name}": self.stands[b].implementation(name) for b, (_, names) in found.items() for name in names}
        with workload.precision(), torch.no_grad():
            timed, refused = launches(workload, wanted, self.device, self.clock)
            full, capped = self.clock.both(timed, budget_s=BUDGET_S)
        times = {name: [round(t[name].median_us, 3) if name in t else None for t in (full, capped)] for name in timed}
        clocks = [t[BASELINE].sm_clock_mhz if BASELINE in t else None for t in (full, capped)]
        return {"workload": str(workload), "chosen": {b: chosen for b, (chosen, _) in found.items()}, "times": times, "clocks": clocks,
                "refused": refused, "not_timed": {name: self.clock.refusals.pop(name) for name in list(self.clock.refusals)},
                "device": torch.cuda.get_device_name(self.device)}  # fmt: skip

    def units(self, backend: str, wanted: list[Workload]) -> Iterator[Unit]:
        """What compiles each configuration once, at the smallest product that has it."""
        seen = set()
        for workload in sorted(wanted, key=lambda w: math.prod(w.shape)):
            for name in configurations(backend, workload, self.device)[1]:
                if (name, workload.dtype) not in seen:
                    seen.add((name, workload.dtype))
                    yield Unit(self.stands[backend].implementation(name), (workload,))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=tuple(TABLES), help="default: all three")
    parser.add_argument("--only", default="", help="a regular expression of workloads")
    parser.add_argument("--seconds", type=float, default=540.0, help="no product is begun after that")
    parser.add_argument("--out", type=Path, default=Path("two-clocks.jsonl"), help="lines are appended")
    parser.add_argument("--list", action="store_true", help="what would be timed")
    parser.add_argument("--build", action="store_true", help="compile only")
    options = parser.parse_args()
    backends, began = options.backend or list(TABLES), time.monotonic()
    wanted = [w for w in products() if re.search(options.only, str(w))]
    if options.list:
        for workload in wanted:
            for backend in backends:
                chosen, names = configurations(backend, workload, torch.device("cpu"))
                print(f"{workload} {backend}: {chosen} of {len(names)}: {' '.join(names)}")
        return 0
    if not torch.cuda.is_available():
        print("torch sees no GPU: --list says what would be timed on one", file=sys.stderr)
        return 2
    bench = Bench(backends, wanted)
    if options.build:
        for unit in (unit for backend in backends for unit in bench.units(backend, wanted)):
            print(f"{unit} {prepare('cuda:0', unit, lambda name, phase: None):.1f} s", file=sys.stderr)
        return 0
    for n, workload in enumerate(wanted, start=1):
        if time.monotonic() - began > options.seconds:
            print(f"{n - 1} of {len(wanted)} products in {options.seconds:.0f} s: --only takes the rest", file=sys.stderr)
            return 1
        line = bench.measure(workload, backends)
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{n}/{len(wanted)} {workload} {time.monotonic() - began:.0f} s", file=sys.stderr)
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
