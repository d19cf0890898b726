"""Which configuration of a backend's product is the quickest at full clock, and which under the power cap? Times them in both states.

    python scripts/two_clocks.py --list                                            what would be timed; needs no GPU
    python scripts/two_clocks.py --build & ... ; python scripts/two_clocks.py --out two-clocks.jsonl --seconds 500
    python scripts/two_clocks.py --only '4096x4096x4096/bfloat16' --backend numba_cuda

Products are those that `opwise bars` holds to cuBLAS's speed, in bfloat16 and TF32. Configurations are those whose estimate is near the
least, and each backend's plain ones whatever their estimate. A line of JSON a product, as soon as it is measured: configuration ->
[us at full clock, us power-capped or null]. What a plan's numbers are fitted to, and what shows where a plan chooses badly.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from opwise.backends import implementation
from opwise.backends.tuned_table import TUNABLE
from opwise.bars.table import WORKLOADS
from opwise.measure.device import Monitor
from opwise.measure.timing import Clock
from opwise.ops.spec import Workload
from opwise.tuning.bench import Stand, install
from opwise.tuning.ways import Machine, ways

TABLES = {"cupy_raw": "cuda_src/matmul", "numba_cuda": "numba_cuda/matmul", "triton_jit": "triton_jit/matmul"}
PLAIN = re.compile(
    r"(pingpong_)?(128x256|128x192|128x128|192x128|256x128)(_[12]x[12])?$|(128x256|256x128|128x128)x64/8/\d/?(resident|persistent)?$|tf32|.*x32/4/"
)
LEAST, SLOW = 2**29, 2**40  # multiply-adds: smaller products are not held back by the power cap
NEAR, MOST = 1.35, 10  # times the least estimate; configurations of a backend
BUDGET_S = 0.05
WRONG = 0.02  # relative error, by Frobenius' norm
BASELINE = "torch.mm"
MORE = ((1024, 1024, 1024), (1536, 1536, 1536), (3072, 3072, 3072), (6144, 6144, 6144), (4096, 4096, 14336), (4096, 14336, 4096))


def products() -> list[Workload]:
    """Largest first, but for those that take seconds."""
    found = {w for w in WORKLOADS if w.op == "matmul" and w.dtype in ("bfloat16", "tfloat32") and w.shape[0] >= 64}
    found |= {Workload("matmul", shape, dtype) for dtype in ("bfloat16", "tfloat32") for shape in MORE}
    macs = {w: math.prod(w.shape) for w in found}
    return sorted((w for w in found if macs[w] >= LEAST), key=lambda w: (macs[w] > SLOW, -macs[w], str(w)))


def configurations(backend: str, workload: Workload, machine: Machine) -> tuple[str, list[str]]:
    """(what the plan chooses, what is timed), the least estimate first; ("", []) where the plan asks no table."""
    of = ways(TUNABLE[TABLES[backend]])
    if not of.configurations(workload, machine):
        return "", []
    chosen, estimates = of.choose(workload, machine), _estimates(backend, workload, machine)
    known = [name for name in of.configurations(workload, machine) if name in estimates]
    least = min((estimates[name] for name in known), default=0.0)
    near = sorted((name for name in known if estimates[name] <= NEAR * least), key=lambda name: estimates[name])[:MOST]
    plain = [name for name in known if PLAIN.match(name) and estimates[name] <= 3 * NEAR * least]
    return chosen, list(dict.fromkeys([chosen, *near, *plain]))


def _estimates(backend: str, workload: Workload, machine: Machine) -> Mapping[str, float]:
    (m, k, n), processors = workload.shape, machine.processors
    if backend == "cupy_raw":
        from opwise.backends.cuda_src import matmul

        offered = matmul.offered(m, k, n, workload.dtype, 16, processors, machine.capability)
        return {name: kernel.estimate(m, k, n, processors) for name, kernel in offered.items()}
    if backend == "numba_cuda":
        from opwise.backends.numba_cuda.matmul.plan import sm90_tiles

        return {tile.name: tile.estimate(m, k, n, processors) for tile in sm90_tiles(m, k, n, workload.dtype, True, machine.capability)}
    from opwise.backends.triton_jit.matmul.cost import busy_us
    from opwise.tuning.triton_matmul import TritonMatmul

    fitting = TritonMatmul()._fitting(workload, machine)
    rated = {name: busy_us(config, m, n, k, processors) for name, config in fitting.items() if config.tile_us}
    least = min(rated.values(), default=0.0)
    return {name: rated.get(name, least) for name in fitting}  # what has no numbers is always timed


class Bench:
    def __init__(self, backends: list[str], wanted: list[Workload]) -> None:
        self.device = torch.device("cuda", 0)
        self.machine, self.clock = Machine.of(self.device), Clock(self.device, Monitor(self.device))
        names = {b: dict.fromkeys(name for w in wanted for name in configurations(b, w, self.machine)[1]) for b in backends}
        self.stands = {b: Stand(TABLES[b], b, tuple(of_backend)) for b, of_backend in names.items()}
        install(tuple(self.stands.values()))

    def measure(self, workload: Workload, backends: list[str]) -> dict[str, Any]:
        """The line of one product."""
        with workload.precision(), torch.no_grad():
            m, k, n = workload.shape
            sets = self.clock.rotation((m * k + k * n + m * n) * workload.torch_dtype.itemsize)
            tensors = [[torch.randn(s, device=self.device).to(workload.torch_dtype) for s in ((m, k), (k, n), (m, n))] for _ in range(sets)]
            a, b, _ = tensors[0]
            launches: dict[str, Any] = {BASELINE: [lambda a=a, b=b, out=out: torch.mm(a, b, out=out) for a, b, out in tensors]}
            truth, chosen, refused = torch.mm(a, b).float(), {}, {}
            for backend in backends:
                chosen[backend], names = configurations(backend, workload, self.machine)
                for name in names:
                    try:
                        launches[f"{backend} {name}"] = self.built(backend, name, tensors, truth)
                    except Exception as error:
                        refused[f"{backend} {name}"] = f"{type(error).__name__}: {error}"[:120]
            full, capped = self.clock.both(launches, budget_s=BUDGET_S)
        times = {name: [round(t.get(name).median_us, 3) if name in t else None for t in (full, capped)] for name in launches}  # type: ignore[union-attr]
        clocks = [t[BASELINE].sm_clock_mhz if BASELINE in t else None for t in (full, capped)]
        return {"workload": str(workload), "chosen": chosen, "times": times, "clocks": clocks, "refused": refused,
                "not_timed": {name: self.clock.refusals.pop(name) for name in list(self.clock.refusals)},
                "device": torch.cuda.get_device_name(self.device)}  # fmt: skip

    def built(self, backend: str, name: str, tensors: list[list[torch.Tensor]], truth: torch.Tensor | None) -> list[Any]:
        """Raises what the backend raises, and ValueError where the product is wrong."""
        forced = implementation(self.stands[backend].implementation(name), self.device)
        made = [forced.prepare(a, b, out=out) for a, b, out in tensors]
        out = tensors[0][2].zero_()
        made[0]()
        torch.cuda.synchronize()
        if truth is not None and not (error := float((out.float() - truth).norm() / truth.norm())) < WRONG:
            raise ValueError(f"wrong by {error:.3g}")
        return made

    def build(self, backend: str, wanted: list[Workload]) -> Iterator[str]:
        """Compiles each configuration once, at the smallest product that has it."""
        seen = set()
        for workload in wanted:
            m, k, n = workload.shape
            with workload.precision():
                tensors = [[torch.zeros(shape, device=self.device, dtype=workload.torch_dtype) for shape in ((m, k), (k, n), (m, n))]]
                for name in configurations(backend, workload, self.machine)[1]:
                    if (name, workload.dtype) not in seen:
                        seen.add((name, workload.dtype))
                        try:
                            self.built(backend, name, tensors, None)
                        except Exception as error:
                            yield f"{backend} {name}: {type(error).__name__}: {error}"[:160]


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
        machine = Machine.of(torch.device("cpu"))
        for workload in wanted:
            for backend in backends:
                chosen, names = configurations(backend, workload, machine)
                print(f"{workload} {backend}: {chosen} of {len(names)}: {' '.join(names)}")
        return 0
    if not torch.cuda.is_available():
        print("torch sees no GPU: --list says what would be timed on one", file=sys.stderr)
        return 2
    bench = Bench(backends, wanted)
    if options.build:
        for backend in backends:
            for line in bench.build(backend, wanted):
                print(line, file=sys.stderr)
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
