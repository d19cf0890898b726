"""Does the checker leave right kernels alone, and is its bound near to what they do? Runs them on many seeds and tells error over bound.

    python scripts/alarms.py --out alarms.json                         1000 seeds at small sizes, 20 at each core size, in some 15 minutes
    python scripts/alarms.py --out alarms.json matmul --seconds 300    one op, and an end
    python scripts/alarms.py --out alarms.json --device cpu            no kernels: models of float32 sums and of tensor cores

On a GPU every backend's unnamed variant runs on every kind of input that a run checks. On a CPU the models of tests/pipelines.py do, at
those core sizes that it can afford. A line a workload: the largest error over its bound, of which implementation, the largest lean (the
mean of the errors) and the alarms. Exit status 1 where there was an alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import torch  # noqa: E402
from pipelines import LOOPS, as_tensor_cores_do, in_float32, with_tf32_factors  # noqa: E402
from torch import Tensor  # noqa: E402

from opwise.backends import BACKENDS, implementation  # noqa: E402
from opwise.backends.protocol import BackendUnavailable, UnsupportedWorkload  # noqa: E402
from opwise.measure.validate import judge  # noqa: E402
from opwise.ops import OPS, Workload  # noqa: E402
from opwise.runner.truth import kinds_of  # noqa: E402

SMALL = {"matmul": ((1, 1, 1), (17, 33, 19), (64, 64, 64), (3, 600, 33)), "softmax": ((3, 33), (7, 130), (2, 1025))}
SMALL_OF_ANY_SHAPE = ((1,), (33,), (37, 53), (1025,))
OF_A_CPU = 1 << 25  # multiplications or elements of a core workload that a CPU runs
LEAST, MOST = 0.1, 1.0  # what the largest error over its bound is to be between, at each core workload
Kernel = Callable[[tuple[Tensor, ...]], Tensor]


@dataclass
class Found:
    """Of a workload over all seeds and kinds of inputs. largest, lean: by implementation."""

    workload: str
    core: bool
    seeds: int = 0
    largest: dict[str, float] = field(default_factory=dict)
    lean: dict[str, float] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        name = max(self.largest, key=self.largest.__getitem__, default="")
        largest = self.largest.get(name, 0.0)
        outside = "" if not (self.core and self.seeds) or LEAST <= largest <= MOST else f"  not in {LEAST} to {MOST}"
        lean = max(self.lean.values(), key=abs, default=0.0)
        return f"{self.workload:40} {self.seeds:5} seeds  {largest:.3f} {name}  lean {lean:+.3f}  {len(self.alarms)} alarms{outside}"


def kernels_of(workload: Workload, device: torch.device) -> dict[str, Kernel]:
    spec = OPS[workload.op]
    if device.type == "cpu":
        return {name: (lambda inputs, of=of: of(spec, inputs)) for name, of in models(workload).items()}
    found: dict[str, Kernel] = {}
    for backend in BACKENDS:
        try:
            of = implementation(f"{backend}/{workload.op}", device)
        except BackendUnavailable as error:
            print(f"{backend} is left out: {error}", file=sys.stderr)
            continue

        def launched(inputs: tuple[Tensor, ...], of: object = of) -> Tensor:
            out = spec.empty_output(*inputs).fill_(float("nan"))
            of.prepare(*inputs, out=out)()  # type: ignore[attr-defined]
            return out

        found[backend] = launched
    return found


def models(workload: Workload) -> Mapping[str, Callable[..., Tensor]]:
    """Of kernels: by name, (spec, inputs) -> output."""
    loop = LOOPS.get(workload.op)
    loops = {"sums in the worst order": lambda spec, inputs: loop(torch.float32, *inputs)} if loop else {}
    if workload.op == "matmul" and workload.dtype != "float32":
        tf32 = {"tf32": with_tf32_factors} if workload.dtype == "tfloat32" else {"float32": in_float32}
        return {**tf32, "tensor cores": as_tensor_cores_do}
    return {"float32": in_float32, **loops}


def tried(workload: Workload, core: bool, seeds: int, device: torch.device, until: float) -> Found:
    """Nothing is begun after `until` (time.monotonic)."""
    spec, found, kernels = OPS[workload.op], Found(str(workload), core), kernels_of(workload, device)
    for seed in range(seeds):
        if time.monotonic() > until:
            break
        for kind, make in kinds_of(spec).items():
            inputs = make(workload, device, seed)
            exact = [x.double() for x in inputs]
            reference = spec.reference(*exact)
            bound = spec.error_bound(workload, reference, *exact)
            del exact
            for name, kernel in kernels.items():
                try:
                    verdict = judge(kernel(inputs), reference, bound)
                except UnsupportedWorkload:
                    continue
                found.largest[name] = max(found.largest.get(name, 0.0), verdict.error_ratio)
                found.lean[name] = max(found.lean.get(name, 0.0), verdict.lean, key=abs)
                found.alarms += [] if verdict.ok else [f"{name}, {kind}, seed {seed}: {verdict.reason}"]
        found.seeds += 1
    return found


def affordable(workload: Workload, device: torch.device) -> bool:
    cost = OPS[workload.op].cost(workload)
    return device.type != "cpu" or max(cost.flops / 2, cost.bytes / 4) <= OF_A_CPU


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help="all where none is named")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--seeds", type=int, default=1000, help="at small sizes")
    parser.add_argument("--core-seeds", type=int, default=20, help="at each core size")
    parser.add_argument("--seconds", type=float, default=1500.0, help="after which nothing more is begun")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    device = torch.device(arguments.device)
    ops = arguments.ops or list(OPS)
    small = [(Workload(op, shape, dtype), False) for op in ops for shape in SMALL.get(op, SMALL_OF_ANY_SHAPE) for dtype in OPS[op].dtypes]
    core = [(w, True) for op in ops for w in OPS[op].workloads["core"] if affordable(w, device)]
    until = time.monotonic() + arguments.seconds
    found = []
    for workload, is_core in (*small, *sorted(core, key=lambda pair: OPS[pair[0].op].cost(pair[0]).bytes)):
        seeds = arguments.core_seeds if is_core else -(-arguments.seeds // len(SMALL.get(workload.op, SMALL_OF_ANY_SHAPE)))
        with workload.precision(), torch.no_grad():
            found.append(tried(workload, is_core, seeds, device, until))
        print(found[-1] if found[-1].seeds else f"{workload}: not begun in time", flush=True)
        for alarm in found[-1].alarms[:3]:
            print(f"    {alarm}", flush=True)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    arguments.out.write_text(json.dumps({"device": where, "found": [asdict(f) for f in found]}, indent=1) + "\n", encoding="utf-8")
    alarms, short = sum(len(f.alarms) for f in found), sum(f.seeds == 0 for f in found)
    print(f"{where}: {alarms} alarms in {sum(f.seeds for f in found)} seeds of {len(found) - short} workloads; {short} not begun in time")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
