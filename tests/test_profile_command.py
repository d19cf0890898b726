"""`opwise profile` as a user meets it: on the CPU in earnest, and the tables of what a GPU would give."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoking import invoke
from rich.console import Console

from opwise.ops.spec import Workload
from opwise.profiling import tables
from opwise.profiling import trace as reading
from opwise.profiling.report import Report, Request
from opwise.profiling.rows import KernelRow, LaunchRow, StageRow
from opwise.record import Interval, Record

WORKLOAD = Workload("softmax", (4096, 4096), "float16")


def test_torch_eager_is_profiled_on_the_cpu_and_what_needs_a_gpu_is_said(tmp_path: Path) -> None:
    trace, stacks = tmp_path / "t.json.gz", tmp_path / "s.txt"
    options = ["--device", "cpu", "--calls", "3", "--trace", str(trace), "--stacks", str(stacks), "--memory", "--json"]
    result = invoke("profile", "torch_eager/softmax", "64x128/float32", *options)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["record"]["status"] == "ok"
    assert data["kernels"] == []
    assert {"aten::softmax", "aten::_softmax"} <= {row["name"] for row in data["operators"]}
    assert {row["stage"]: row["count"] for row in data["stages"]}["call"] == 3
    assert any(row["bytes"] == 64 * 128 * 4 and row["count"] == 3 for row in data["allocations"])
    assert reading.problems(json.loads(gzip.decompress(trace.read_bytes()))) == []
    assert any("empty_output" in line for line in stacks.read_text().splitlines())
    shown = printed(report_of(data))
    assert "aten::_softmax" in shown
    assert "needs a GPU" in shown


def report_of(data: dict[str, Any]) -> Report:
    """The report of a JSON object, as far as the tables need it."""
    from opwise.profiling.allocations import Allocation
    from opwise.profiling.rows import OperatorRow

    lists = {"stages": StageRow, "operators": OperatorRow, "allocations": Allocation}
    rows: Any = {name: [kind(**row) for row in data[name]] for name, kind in lists.items()}
    return Report(Request(**data["request"]), Record.from_data(data["record"]), data["bytes"], data["flops"], **rows)


def printed(report: Report) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    tables.show(report, console)
    return console.export_text()


def on_gpu(cold_us: float) -> Report:
    """What a GPU would give: a kernel of 19.5 us by CUPTI, a clock that says `cold_us`."""
    record = Record.of("triton_jit/softmax", WORKLOAD, status="ok", error_ratio=0.9, device="NVIDIA H200", limit_us=17.76,
                       kernel_cold_us=Interval(cold_us, cold_us, cold_us, 40, "graph"), launch_us=Interval(5.2, 5.1, 5.3, 40))  # fmt: skip
    kernel = KernelRow("_softmax_rows", "cold", 60, 60, 19.5, 19.0, 21.0, 4.0, (4096, 1, 1), (256, 1, 1), 40, 1024, 61.0, 7)
    launches = [LaunchRow("cold", 60, 19.5, 19.0, 21.0), LaunchRow("warm", 60, 18.0, 17.9, 18.4)]
    return Report(Request("triton_jit/softmax", str(WORKLOAD), "cuda:0"), record, 2 * 4096 * 4096 * 2, 4096 * 4096 * 5,
                  [kernel, replace(kernel, heat="warm", device_us=18.0)], launches, [StageRow("call", 10, 30.0)])  # fmt: skip


def test_the_table_has_the_kernels_figures_and_the_rates() -> None:
    shown = printed(on_gpu(19.6))
    line = next(line for line in shown.splitlines() if "_softmax_rows" in line)
    assert [part.strip() for part in line.split("│")[:12]] == [
        "_softmax_rows", "cold", "1", "19.50", "19.00", "21.00", "4.0", "4096x1x1", "256x1x1", "40", "1024", "61"]  # fmt: skip
    whole = next(line for line in shown.splitlines() if "the launch" in line)
    assert [part.strip() for part in whole.split("│")[-3:]] == ["3441", "4.30", "0.91"]  # 67.1 MB and 83.9 Mflop in 19.5 us; 17.76 / 19.5
    assert "needs a GPU" not in shown
    assert "the profiler -0.5 %" in shown
    assert "docs/profiling.md" not in shown


def test_the_profiler_is_held_against_the_clock_at_full_clock() -> None:
    both = on_gpu(19.6)
    both = replace(both, record=replace(both.record, kernel_capped_us=Interval(24.0, 23.9, 24.1, 40)))
    shown = printed(both)
    assert "cold at full clock: 19.60 us by the clock of `opwise run`, the profiler -0.5 %" in shown
    assert "power-capped: 24.00 us" in shown
    capped = printed(replace(both, record=replace(both.record, kernel_cold_us=None)))
    assert "the profiler -" not in capped
    assert "power-capped: 24.00 us" in capped


def test_a_profiler_that_disagrees_with_the_clock_is_told() -> None:
    assert "docs/profiling.md" in printed(on_gpu(22.0))
    short = on_gpu(19.5)
    short = replace(short, kernels=[replace(short.kernels[0], count=59)])
    assert "60 launches from a cold L2 show 59 times _softmax_rows" in printed(short)
    assert on_gpu(19.5).apart() == pytest.approx(0.0)
    assert json.loads(json.dumps(on_gpu(19.5).as_dict()))["cold_profiler_over_clock"] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (["profile", "triton/softmax", "4x4/float32"], ["no implementation", "triton_jit"]),
        (["profile", "triton_jit/softmax", "gelu/4x4/float32"], ["a workload of gelu", "softmax/SHAPE/DTYPE"]),
        (["profile", "triton_jit/softmax", "4x4x4/float32"], ["no workload of softmax", "2 sizes"]),
        (["profile", "triton_jit/softmax", "4x4"], ["no workload", "softmax/4096x4096/float16"]),
        (["profile", "triton_jit/softmax", "0x4/float32"], ["no elements", "without a 0"]),
        (["profile", "triton_jit/softmax", "4x4/float32", "--blocking", "--ncu"], ["--blocking", "leave the other options out"]),
        (["profile", "triton_jit/softmax", "4x4/float32", "--trace", "."], ["is a folder"]),
        (["profile", "triton_jit/softmax", "4x4/float32", "--trace", "a.svg"], ["--trace", "'.svg'", ".json.gz"]),
        (["profile", "triton_jit/softmax", "4x4/float32", "--stacks", "st.pdf"], ["--stacks", "'.pdf'", ".svg", ".folded"]),
        (["report", "-o", "page.svg"], ["-o", ".html"]),
        (["record", "-o", "calls.txt", "--", "app.py"], ["--output", ".json"]),
        (["seeds", "-o", "run.txt"], ["-o", ".json"]),
        (["anatomy", "softmaxx", "4x4/float32"], ["unknown op", "softmax"]),
        (["anatomy", "softmax", "4x4/float33"], ["unknown dtype", "bfloat16"]),
        (["anatomy", "softmax", "4x4/float32", "--plot", "a.pdf"], ["--plot", ".svg"]),
    ],
)
def test_bad_usage_exits_2_and_says_what_is_taken(arguments: list[str], needles: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert not [needle for needle in needles if needle not in result.output], result.output
