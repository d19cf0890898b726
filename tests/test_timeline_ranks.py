"""Real traces of two ranks of a job (traces/README.md): kinds, kernels, overlap, launches and counters are Holistic Trace Analysis's."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from invoking import invoke
from small_traces import ONE_STREAM, Event, call, kernel, parsed, trace, written
from support import needs

from opwise.timeline import charts, counters, ranks
from opwise.timeline.analysis import Timeline
from opwise.timeline.kinds import COMMUNICATION, COMPUTATION, KINDS, MEMORY, OTHERS, added, kernel_times, kinds
from opwise.timeline.launches import Cutoffs

FOLDER = Path(__file__).parent / "traces"
# Read off HTA 0.6.1, us: the span, idle and computing of ranks 0 and 1; what ran at once in both; % of communication beside computation.
SPANS = {0: (1222847, 675191, 210320), 1: (1231186, 651136, 271973)}
TOGETHER = {
    (COMMUNICATION,): 635528, (COMPUTATION,): 347519, (COMPUTATION, COMMUNICATION): 126830, (COMPUTATION, COMMUNICATION, MEMORY): 7916,
    (COMMUNICATION, MEMORY): 4978, (MEMORY,): 4907, (COMPUTATION, MEMORY): 28,
}  # fmt: skip
OVERLAPS = {0: 14.95, 1: 19.93}


@pytest.fixture(scope="module")
def job() -> dict[int, Timeline]:
    return ranks.read([FOLDER])


@pytest.fixture(scope="module")
def hta() -> Any:
    os.environ.setdefault("HTA_DISABLE_NS_ROUNDING", "1")
    needs("hta")
    files = {rank: str(FOLDER / f"rank-{rank}.json.gz") for rank in SPANS}
    module = importlib.import_module("hta.trace_analysis")
    return module.TraceAnalysis(trace_files=files, trace_dir=str(FOLDER), include_last_profiler_step=True)


def test_the_figures_are_those_read_off_hta(job: dict[int, Timeline]) -> None:
    found = {rank: t.kinds for rank, t in job.items() if t.kinds}
    assert {rank: (k.span, k.idle, k.ran(COMPUTATION)) for rank, k in found.items()} == {
        rank: tuple(1000 * us for us in figures) for rank, figures in SPANS.items()
    }
    assert added(found.values()).together == {key: 1000 * us for key, us in TOGETHER.items()}
    assert {rank: round(100 * (k.overlap or 0), 2) for rank, k in found.items()} == OVERLAPS


@pytest.mark.xdist_group("hta")
@pytest.mark.filterwarnings("ignore")  # pandas about HTA
@pytest.mark.parametrize("most", [10_000, 10])
def test_kernels_are_hta_s(hta: Any, most: int) -> None:
    """All figures of every kernel where none is gathered; else which are, and the sums: HTA takes the rest from sums, not from runs."""
    _, rows = hta.get_gpu_kernel_breakdown(visualize=False, num_kernels=most, include_memory_kernels=True)
    theirs = {(int(r["rank"]), r["kernel_type"].lower(), r["name"]): r for _, r in rows.iterrows()}
    ours = {(rank, k.kind, k.name): k for rank, t in ranks.read([FOLDER], most_kernels=most).items() for k in t.kernel_times}
    assert set(ours) == set(theirs)
    assert (OTHERS in {name for *_, name in ours}) == (most == 10)
    for key, k in ours.items():
        assert k.total == pytest.approx(theirs[key]["sum (us)"])
        if most > 10:
            figures = [theirs[key][f"{name}"] for name in ("mean (us)", "min (us)", "max (us)", "stddev")]
            assert [k.mean, k.least, k.greatest, k.deviation] == pytest.approx(figures)


@pytest.mark.xdist_group("hta")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cutoffs", [Cutoffs(), Cutoffs(20.0, 10_000.0)], ids=["HTA's", "others"])
def test_launches_are_hta_s_at_any_cut_offs(hta: Any, cutoffs: Cutoffs) -> None:
    job = ranks.read([FOLDER], cutoffs=cutoffs)
    for rank, theirs in hta.get_cuda_kernel_launch_stats(ranks=[0, 1], visualize=False).items():
        every, cpu, gpu = job[rank].all_launches, theirs["cpu_duration"], theirs["gpu_duration"]
        assert every is not None
        assert (every.count, every.short_kernels, every.runtime_outliers, every.delay_outliers) == (
            len(theirs), int(((cpu <= cutoffs.call_us) & (gpu < cpu)).sum()), int((cpu > cutoffs.call_us).sum()),
            int((theirs["launch_delay"] > cutoffs.delay_us).sum()),
        )  # fmt: skip


@pytest.mark.xdist_group("hta")
@pytest.mark.filterwarnings("ignore")
def test_counters_in_the_trace_are_hta_s_series(hta: Any, tmp_path: Path) -> None:
    path = tmp_path / "with.json"
    result = invoke("timeline", "--from", str(FOLDER / "rank-1.json.gz"), "--counters", str(path), "--json")
    assert result.exit_code == 0, result.output
    written_events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "C"]
    ours: dict[tuple[str, str], dict[int, float]] = {}
    for e in written_events:
        (value,) = e["args"].values()
        ours.setdefault((e["name"], str(e.get("id", ""))), {})[round(e["ts"])] = value
    theirs: dict[tuple[str, str], dict[int, float]] = {}
    start = int(hta.t.min_ts)
    for r in hta.get_queue_length_time_series(ranks=[1])[1].itertuples():
        theirs.setdefault((counters.QUEUE, str(r.stream)), {})[start + int(r.ts)] = r.queue_length
    for r in hta.get_memory_bw_time_series(ranks=[1])[1].itertuples():
        theirs.setdefault((r.name, ""), {})[start + int(r.ts)] = r.memory_bw_gbps
    assert set(ours) == set(theirs)
    for key, series in theirs.items():
        assert set(ours[key]) == set(series), key
        assert [ours[key][at] for at in series] == pytest.approx(list(series.values()), abs=1e-6), key
    assert len(ranks.read([path])[1].trace.activities) == 1154, "a trace with counters is still a trace"


@pytest.mark.parametrize(
    ("events", "together"),
    [
        ((kernel("k", 0, 10, 1), kernel("ncclDevKernel_AllReduce", 4, 10, 2, stream=9), kernel("Memcpy HtoD", 12, 4, 3, stream=11)),
         {(COMPUTATION,): 4, (COMPUTATION, COMMUNICATION): 6, (COMMUNICATION,): 2, (COMMUNICATION, MEMORY): 2, (MEMORY,): 2}),
        ((kernel("k", 0, 10, 1), kernel("k", 2, 3, 2, stream=9), kernel("k", 10, 5, 3)), {(COMPUTATION,): 15}),
        ((kernel("k", 0, 5, 1), kernel("Memset (Device)", 7, 0, 2)), {(COMPUTATION,): 5}),
    ],
    ids=["three streams", "touching and within", "no length"],
)  # fmt: skip
def test_what_ran_at_once_is_what_is_worked_out(events: tuple[Event, ...], together: dict[tuple[str, ...], int]) -> None:
    found = kinds(parsed(events).activities)
    assert found.together == {key: 1000 * us for key, us in together.items()}
    assert found.overlap == (pytest.approx(0.6) if (COMMUNICATION,) in together else None)


def test_bandwidths_of_copies_at_once_are_added_and_end_at_nothing() -> None:
    copies = (kernel("Memcpy HtoD (Pinned -> Device)", 0, 10, 1, bytes=1000), kernel("Memcpy HtoD (Pageable)", 5, 10, 2, bytes=3000),
              kernel("Memset (Device)", 20, 0, 3, **{"memory bandwidth (GB/s)": 2.5}), kernel("Memcpy DtoH", 30, 4, 4))  # fmt: skip
    found = parsed(copies)
    start, series = found.activities[0].start, counters.bandwidths(found.activities)
    assert {name: [((at - start) // 1000, rate) for at, rate in steps] for (_, name), steps in series.items()} == {
        "Memcpy HtoD": [(0, 0.1), (5, pytest.approx(0.4)), (10, pytest.approx(0.3)), (15, 0.0)], "Memset": [(20, 2.5), (21, 0.0)],
    }  # fmt: skip


def test_the_command_shows_the_job_and_draws_it(tmp_path: Path) -> None:
    needs("matplotlib", "plotly")
    result = invoke("timeline", "--ranks", str(FOLDER), "--kernels", "3", "--charts", str(tmp_path / "job.html"))
    assert result.exit_code == 0, result.output
    for figure in (
        "675191.000 (55.21 %)",
        "271973.000 (22.09 %)",
        "14.95 %",
        "19.93 %",
        "635528.000",
        "56.4 %",
        "ncclKernel_SendRecv",
        "937",
    ):
        assert figure in result.stdout, figure
    page = (tmp_path / "job.html").read_text()
    assert "computation: mean duration, least to greatest" in page
    assert "delays that are outliers" in page
    files = [str(FOLDER / f"rank-{i}.json.gz") for i in (1, 0)]
    result = invoke("timeline", "--ranks", files[0], "--ranks", files[1], "--json", "--charts", str(tmp_path / "job.svg"))
    *each, whole = map(json.loads, result.stdout.splitlines())
    assert [(data["rank"], data["kinds"]["span_us"]) for data in each] == [(rank, figures[0]) for rank, figures in SPANS.items()]
    assert {tuple(part["kinds"]): part["us"] for part in whole["kinds"]["together"]} == TOGETHER
    assert (tmp_path / "job.svg").read_text().startswith("<?xml")


def test_charts_hold_what_their_titles_say(job: dict[int, Timeline]) -> None:
    found = {chart.title: chart for chart in charts.charts({t.name: t for t in job.values()})}
    assert sum(found["kinds"].shares.values()) == pytest.approx(100)
    assert {name: bar[0] for name, bar in found["communication beside computation"].bars["overlap"].items()} == pytest.approx(
        {f"rank {rank}": share for rank, share in OVERLAPS.items()}, abs=0.005
    )
    assert all(f"{kind}: mean duration, least to greatest" in found for kind in KINDS)
    outliers = {name: len(samples) for name, samples in found["delays that are outliers"].samples.items()}
    assert outliers == {t.name: t.all_launches.delay_outliers for t in job.values() if t.all_launches}
    assert "calls that are outliers" in found
    assert set(found["calls that are outliers"].samples) == {"rank 0"}, "rank 1 has none"
    assert [row.name for row in kernel_times(parsed((call("cudaLaunchKernel", 0, 1, 1), kernel("k", 5, 1, 1))).activities)] == ["k"]


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (["--ranks", "{folder}", "--from", "x.json", "--hta"], ["--ranks", "--from, --hta"]),
        (["--ranks", "{empty}"], ["without a trace", ".json.gz"]),
        (["--ranks", "{one}", "--ranks", "{one}"], ["rank 0", "one trace a rank"]),
        (["--ranks", "{cpu}"], ["no GPU activity"]),
        (["--from", "{one}", "--counters", "x.txt"], ["--counters", ".json.gz"]),
        (["--from", "{one}", "--charts", "x.pdf"], ["--charts", ".svg"]),
    ],
)
def test_what_is_no_job_is_one_clear_line(tmp_path: Path, arguments: list[str], needles: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    known = {"folder": FOLDER, "empty": tmp_path / "empty", "one": written(tmp_path / "one.json.gz", trace(ONE_STREAM)),
             "cpu": written(tmp_path / "cpu.json.gz", trace(ONE_STREAM[1:3]))}  # fmt: skip
    result = invoke("timeline", *(text.format(**known) for text in arguments))
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.strip()]
    assert all(needle in line for needle in needles), line
