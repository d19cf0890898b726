"""CS336, lecture 6: benchmark() by the wall clock, and profiles with stacks for a flame graph."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from opwise.measure.stats import median
from opwise.ops.spec import Workload
from opwise.seeds.clocks import benchmark, race, told_us
from opwise.seeds.experiment import Findings
from opwise.seeds.place import Place
from opwise.seeds.profiles import profiled, with_stacks

SIZES = (256, 16384)


def wall_clock(place: Place) -> Findings:
    """benchmark() of a large and of a small square, beside the cold GPU time: the difference is the wall clock's overhead."""
    figures: dict[str, float] = {}
    told: list[tuple[float, float]] = []
    for n in SIZES:
        x = torch.randn(n, n, device=place.device)
        wall = median(benchmark(lambda x=x: x * x, 3, 10, place.wait)) * 1e6  # type: ignore[misc]
        cold = race(place, Workload("square", (n, n), "float32"), ["torch_eager/square:mul"], 0.2).us("torch_eager/square:mul")
        figures |= {f"{n}x{n}, wall clock, us": wall, f"{n}x{n}, cold, us": cold}
        told.append((wall, cold))
    (small_wall, small_cold), (large_wall, large_cold) = told
    small, large = (f"{n}x{n}" for n in SIZES)
    return Findings(
        f"{told_us(small_wall)} and {told_us(large_wall)}",
        f"{small}: {small_wall / small_cold:.1f} times the kernel's own time, launch and synchronize are in it; {large}: "
        f"{large_wall / large_cold:.2f} times",
        small_wall > 1.5 * small_cold and large_wall < 1.5 * large_cold,
        figures=figures,
    )


def stacks(place: Place) -> Findings:
    """export_stacks with and without `experimental_config`: lines for a flame graph, "a;b;c microseconds"."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).to(place.device)
    x = torch.ones(8, 64, device=place.device)
    lines: dict[str, list[str]] = {}
    tables: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="opwise-seeds-") as folder:
        for name, options in (("with", with_stacks()), ("without", {"with_stack": True})):
            path = Path(folder, name)
            found = profiled(place, lambda: model(x), **options)
            found.profiler.export_stacks(str(path), "self_cpu_time_total")
            lines[name] = path.read_text().splitlines() if path.exists() else []
            order = "device_time_total" if place.gpu else "cpu_time_total"  # cuda_time_total, as the sources call it, is gone
            tables[name] = found.profiler.key_averages(group_by_stack_n=5).table(sort_by=order, row_limit=5)
    located = " and ".join(f"{name} it" for name, table in tables.items() if "Source Location" in table) or "in neither case"
    whole = [line for line in lines["with"] if ";" in line and line.rsplit(" ", 1)[-1].isdigit()]
    return Findings(
        f"{len(whole)} stacks",
        f"{len(whole)} stacks with experimental_config, {len(lines['without'])} without it; key_averages' table has source lines {located}",
        len(whole) > 0 and not lines["without"],
        figures={"stacks": len(whole), "stacks without experimental_config": len(lines["without"])},
        tables={"key_averages(group_by_stack_n=5)": tables["with"]},
        files={"stacks.txt": "\n".join(whole) + "\n"},
    )
