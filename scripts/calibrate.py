"""Calibrates the clock on this GPU: is it steady, is its queue never starved, does it agree with CUPTI?

    python scripts/calibrate.py --out calibration.json        about 2 minutes on an H200; docs/measuring.md says what to expect

Figures are in microseconds unless their names say otherwise. Exit status 1 where a rule is not kept.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import DeviceType

from opwise.measure.device import Monitor, facts
from opwise.measure.gpu import Launch
from opwise.measure.limits import Roofs
from opwise.measure.rounds import Course, Rounds
from opwise.measure.stats import median
from opwise.measure.timing import Clock

SIZES, PROCESSES = (4096, 10000, 16384), 3
PRODUCTS, STATES = (4096, 6144, 8192), ("full clock", "power-capped")
STEADY, STEADY_ABOVE_US = 0.01, 100.0  # fresh processes agree within 1 % on kernels above 100 us
AGREE = 0.03  # with CUPTI's durations
NOT_TIMED = ("Sync", "Event")  # no kernels


def bound(function: Callable[..., Any], *arguments: Any, **options: Any) -> Launch:
    return lambda: function(*arguments, **options)


BINDINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], Launch]] = {
    "copy": lambda x, out: bound(out.copy_, x),
    "square": lambda x, out: bound(torch.square, x, out=out),
    "softmax": lambda x, out: bound(torch.softmax, x, dim=-1, out=out),
    "mean": lambda x, out: bound(torch.mean, x, dim=(0, 1), out=out),
    "matmul": lambda x, out: bound(torch.mm, x, x, out=out),
    "triton copy": lambda x, out: dict(import_module("opwise.measure.triton_roofs").copies(x.view(-1), out.view(-1)))["triton 1024"],
}


def launches_of(op: str, n: int, dtype: torch.dtype, sets: int) -> list[Launch]:
    """One launch a set, each on buffers of its own."""
    launches = []
    for _ in range(sets):
        x = torch.randn(n, n, device="cuda").to(dtype)
        launches.append(BINDINGS[op](x, torch.empty((), device="cuda", dtype=dtype) if op == "mean" else torch.empty_like(x)))
    return launches


def moved(op: str, n: int, dtype: torch.dtype) -> int:
    return n * n * dtype.itemsize * {"mean": 1, "matmul": 3}.get(op, 2)


def clock_here() -> Clock:
    device = torch.device("cuda", 0)
    return Clock(device, Monitor(device))


def floors(clock: Clock) -> dict[str, float]:
    queue = clock.queue
    with queue.ready():
        queue.spin(1000.0)
        marks = [queue.mark() for _ in range(100)]
        queue.wait()
        pairs = [queue.elapsed_us(a, b) for a, b in zip(marks[::2], marks[1::2], strict=True)]
    roofs = Roofs(clock)
    return {"empty event pair": median(pairs), "empty kernel, events": roofs.launch_us(1 << 30), "empty kernel, graph": roofs.launch_us(0)}


def steady_part() -> dict[str, float]:
    """What one fresh process measures: products in both states."""
    clock, found = clock_here(), dict[str, float]()
    for n in PRODUCTS:
        states = clock.both({"a": launches_of("matmul", n, torch.bfloat16, clock.rotation(moved("matmul", n, torch.bfloat16)))})
        found |= {f"matmul {n}, {state}": times["a"].median_us for state, times in zip(STATES, states, strict=True) if times}
    for n in SIZES:
        ops = ("copy", "square", "softmax")
        launches = {op: launches_of(op, n, torch.float32, clock.rotation(moved(op, n, torch.float32))) for op in ops}
        found |= {f"{op} {n}": timing.median_us for op, timing in clock.cold(launches).items()}
        del launches
        torch.cuda.empty_cache()
    return found


def steadiness() -> dict[str, Any]:
    runs = []
    for _ in range(PROCESSES):
        done = subprocess.run([sys.executable, __file__, "--part", "steady"], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"a fresh process failed with status {done.returncode}: {done.stderr.strip()[-2000:]}")
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    found = {}
    for cell in runs[0]:
        medians = [run[cell] for run in runs]
        spread = max(medians) / min(medians) - 1
        found[cell] = {"medians": medians, "spread_percent": 100 * spread, "ok": spread <= STEADY or min(medians) < STEADY_ABOVE_US}
    return found


def flushes(clock: Clock) -> dict[str, Any]:
    """Each flush between events, beside launches in turns on several buffers in a graph, where each pays for its own writes alone."""
    found, queue = {}, clock.queue
    for op, n in itertools.product(("square", "mean"), (1024, 4096, 10000)):
        launches = launches_of(op, n, torch.float32, max(2, clock.rotation(moved(op, n, torch.float32))))
        row = {"graph": clock.cold({"a": launches}, budget_s=0.2)["a"].median_us}
        for kind in ("dirty", "clean", "mixed"):  # ends with the one that is used
            queue.flush = queue.flushes[kind]  # type: ignore[attr-defined,method-assign]
            row[kind] = clock.cold({"a": launches[:1]}, budget_s=0.2)["a"].median_us
        found[f"{op} {n}"] = row
    return found


def slowly(launch: Launch) -> None:
    until = time.perf_counter() + 60e-6
    while time.perf_counter() < until:
        pass
    launch()


def backlogs(clock: Clock) -> dict[str, Any]:
    """Median of 32 samples behind the backlog that was found to do, and behind twice of it."""
    found = {}
    rounds = Rounds(clock.queue, lambda name: None, lambda name, error: None, clock.watch.look)
    for n in (128, 1024, 4096):
        launch = launches_of("square", n, torch.float32, 1)[0]
        for name, step in ((f"square {n}", launch), (f"square {n}, 60 us to launch", bound(slowly, launch))):
            course = Course(name, step, flushed=True)
            with clock.queue.ready():
                for _ in range(5):
                    rounds.batch(course, 32)
                once, twice = (median(rounds.batch(course, 32, factor)) for factor in (1.0, 2.0))
            ok = abs(once - twice) <= max(0.02 * twice, 0.5)
            found[name] = {"x1": once, "x2": twice, "cpu_us": course.cpu_us, "late": course.late, "ok": ok}
    return found


def products(clock: Clock) -> dict[str, Any]:
    """cuBLAS in the two states, each with its clock, beside a burst of eight launches after a pause."""
    found: dict[str, Any] = {}
    for n in (1024, 2048, *PRODUCTS, 16384):
        launches = launches_of("matmul", n, torch.bfloat16, clock.rotation(moved("matmul", n, torch.bfloat16)))
        clock.burst_us(launches[0], 3, 0.0)  # loads what the first launch needs
        burst = clock.burst_us(launches[0], 8, 0.5)
        states = zip(STATES, clock.both({"a": launches}), strict=True)
        row = {state: {**vars(times["a"]), "rounds_us": None} for state, times in states if times}
        found[f"matmul {n}"] = {"burst": burst, **row, "refused": clock.refusals.pop("a", "")}
        del launches
        torch.cuda.empty_cache()
    return found


CELLS = (
    ("square", 4096, torch.float16),
    ("square", 10000, torch.float32),
    ("softmax", 4096, torch.float32),
    ("mean", 16384, torch.float32),
    *(("matmul", n, torch.bfloat16) for n in (2048, 3072, 4096, 8192)),
    ("matmul", 4096, torch.float16),
    ("matmul", 4096, torch.float32),
    ("triton copy", 4096, torch.float32),
)


def against_cupti(clock: Clock) -> dict[str, Any]:
    """The clock's median beside the median of CUPTI's durations of the very launches that it timed, in both methods."""
    found = {}
    for op, n, dtype in CELLS:
        sets = clock.rotation(moved(op, n, dtype))
        used = "graph" if sets > 1 else "events"
        launches = launches_of(op, n, dtype, max(2, sets))
        for method, chosen in (("events", launches[:1]), ("graph", launches)):
            ours, cupti = profiled(clock, chosen)
            error = ours / cupti - 1 if cupti else None
            found[f"{op} {n} {str(dtype).removeprefix('torch.')}, {method}"] = {
                "ours": ours, "cupti": cupti, "difference_percent": None if error is None else 100 * error, "used": method == used,
                "ok": method != used or (error is not None and abs(error) <= AGREE)}  # fmt: skip
        del launches, chosen
        torch.cuda.empty_cache()
    return found


def profiled(clock: Clock, launches: Sequence[Launch]) -> tuple[float, float | None]:
    """(the clock's cold time, CUPTI's of the same launches): for each kernel of a launch the median of its durations in the second
    half, which is what the clock kept after its warm-up; then their sum. None where CUPTI reports nothing."""
    from torch.profiler import ProfilerActivity, profile

    def kernels(profiler: profile) -> list[Any]:
        events = [e for e in profiler.events() if e.device_type == DeviceType.CUDA]  # type: ignore[no-untyped-call]
        return sorted(events, key=lambda e: e.time_range.start)

    launches[0]()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        launches[0]()
        torch.cuda.synchronize()
    names = [e.name for e in kernels(profiler) if not any(part in e.name for part in NOT_TIMED)]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        timings = clock.cold({"a": launches})
    if not timings:
        raise RuntimeError(clock.refusals.pop("a"))
    ours = timings["a"].median_us
    durations: dict[str, list[float]] = {name: [] for name in names}
    for event in kernels(profiler):
        if event.name in durations:
            durations[event.name].append(event.time_range.elapsed_us())
    if not names or not all(durations.values()):
        print(f"no kernels of {names} were seen", file=sys.stderr)
        return ours, None
    return ours, sum(names.count(name) * median(found[len(found) // 2 :]) for name, found in durations.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    parser.add_argument("--only", action="append", metavar="PART", help="fresh processes, floors, flushes, backlogs, products or cupti")
    parser.add_argument("--part", choices=("steady",), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no GPU: there is nothing to calibrate", file=sys.stderr)
        return 2
    if options.part == "steady":
        print(json.dumps(steady_part()))
        return 0
    clock = clock_here()
    found: dict[str, Any] = {"facts": facts(clock.device)}
    parts: dict[str, Callable[[], Any]] = {
        "fresh processes": steadiness,
        "floors": lambda: floors(clock),
        "flushes": lambda: flushes(clock),
        "backlogs": lambda: backlogs(clock),
        "products": lambda: products(clock),
        "cupti": lambda: against_cupti(clock),
    }
    for name, part in parts.items():
        if options.only and name not in options.only:
            continue
        began = time.monotonic()
        try:
            found[name] = part()
        except Exception as error:  # one part that cannot run here must not cost the others
            found[name] = {"failed": {"error": f"{type(error).__name__}: {error}", "ok": False}}
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    text = json.dumps(found, indent=1, default=str)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    checks = [cell for part in found.values() if isinstance(part, dict) for cell in part.values() if isinstance(cell, dict)]
    return 0 if all(cell.get("ok", True) for cell in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
