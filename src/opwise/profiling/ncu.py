"""The Speed-of-Light and memory sections of Nsight Compute for one launch: hardware counters, which torch's profiler lacks.

ncu runs a child that launches once between its profiler's start and stop. The GPU's clocks are not locked; caches are flushed before each
pass, which is ncu's default. The report is read by `ncu_report`, the module that Nsight Compute ships, or else from ncu's CSV export."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opwise.profiling import ncu_values

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")
TIMEOUT_S = 600.0
REMEDY_COUNTERS = (
    "counters need rights here: run as root, or let an administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0 "
    "(in a container also: --cap-add SYS_ADMIN)"
)
REMEDY_MISSING = "install Nsight Compute (it comes with the CUDA toolkit, or as the package nsight-compute) and put ncu on PATH"
# What the two sections show, by ncu's metric and in its order. A GPU or a version that lacks one leaves it out.
METRICS: Mapping[str, str] = {
    "gpu__time_duration.sum": "duration",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute throughput",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory throughput",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "L1 throughput",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "L2 throughput",
    "dram__bytes_read.sum": "DRAM bytes read",
    "dram__bytes_write.sum": "DRAM bytes written",
    "dram__bytes.sum.per_second": "DRAM bandwidth",
    "l1tex__t_sector_hit_rate.pct": "L1 hit rate",
    "lts__t_sector_hit_rate.pct": "L2 hit rate",
    "l1tex__lsu_writeback_active.avg.pct_of_peak_sustained_active": "LSU writeback",
    "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory pipes busy",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy",
    "launch__registers_per_thread": "registers a thread",
    "sm__cycles_elapsed.avg.per_second": "SM clock",
    "smsp__cycles_elapsed.avg.per_second": "SM sub-partition clock",
}


class NcuRefused(RuntimeError):
    """ncu is missing, or cannot read counters here. One line, with the remedy."""


@dataclass(frozen=True)
class Counter:
    """One metric of one kernel; `unit` as ncu names it."""

    kernel: str
    name: str
    metric: str
    value: float | str
    unit: str


def command(report: Path, implementation: str, workload: str, device: str, files: Sequence[Path] = ()) -> list[str]:
    """The command line. Raises NcuRefused without ncu."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise NcuRefused(f"there is no ncu on PATH: {REMEDY_MISSING}")
    sections = [word for section in SECTIONS for word in ("--section", section)]
    return [ncu, "--target-processes", "all", "--profile-from-start", "off", "--clock-control", "none", *sections, "--force-overwrite",
            "--export", str(report), sys.executable, "-m", "opwise.profiling.once", implementation, workload, device,
            *map(str, files)]  # fmt: skip


def counted(implementation: str, workload: str, device: str, keep: Path | None = None, files: Sequence[Path] = ()) -> list[Counter]:
    """The counters of each kernel of one launch. `keep`: path for the report of Nsight Compute's GUI; `files`: the user's own files.

    Raises NcuRefused in one line with the remedy."""
    with tempfile.TemporaryDirectory(prefix="opwise-ncu-") as folder:
        report = Path(folder) / "report.ncu-rep"
        line = command(report, implementation, workload, device, files)
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, errors="replace")
        except subprocess.TimeoutExpired as error:
            raise NcuRefused(f"ncu said nothing for {TIMEOUT_S:g} s: another tool may hold the GPU's counters") from error
        if not report.is_file():
            raise NcuRefused(refusal(done.stdout + done.stderr, done.returncode))
        found = read(report, line[0])
        if keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(report, keep)
    if not found:
        raise NcuRefused("ncu saw no kernel between the profiler's start and stop: nothing was launched there")
    return found


def refusal(output: str, status: int) -> str:
    """The reason in ncu's output, in one line."""
    if "ERR_NVGPUCTRPERM" in output:
        return f"ncu may not read the GPU's counters (ERR_NVGPUCTRPERM): {REMEDY_COUNTERS}"
    errors = [line.strip() for line in output.splitlines() if re.search(r"==ERROR==|Error", line)]
    last = errors[-1] if errors else (output.strip().splitlines() or ["no message"])[-1]
    return f"ncu ended with exit status {status} and no report: {last.removeprefix('==ERROR== ')}"


def read(report: Path, ncu: str) -> list[Counter]:
    """Reads a report by the module that ships with Nsight Compute, else by ncu's export."""
    for folder in module_folders(ncu):
        line = [sys.executable, ncu_values.__file__, str(report), str(folder), *METRICS]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode == 0:  # else it is of another Python, or has crashed
            return [Counter(kernel, METRICS[metric], metric, value, unit) for kernel, metric, value, unit in json.loads(done.stdout)]
    line = [ncu, "--import", str(report), "--page", "raw", "--csv"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    return from_csv(done.stdout)


def from_csv(text: str) -> list[Counter]:
    """`text`: ncu's raw page, a line per kernel under one line of names and one of units."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if '"Kernel Name"' in line), None)
    if first is None:
        return []
    table: Sequence[Mapping[str, str]] = list(csv.DictReader(io.StringIO("\n".join(lines[first:]))))
    units, kernels = (table[0], table[1:]) if table else ({}, [])
    return [
        Counter(row["Kernel Name"], name, metric, _number(row[metric]), units.get(metric) or "")
        for row in kernels
        for metric, name in METRICS.items()
        if row.get(metric)
    ]


def _number(text: str) -> float | str:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def module_folders(ncu: str) -> list[Path]:
    """Folders of `ncu_report` in the installation that `ncu` belongs to."""
    real = Path(ncu).resolve()
    folders = [*(parent / "extras" / "python" for parent in real.parents), *_beside(real)]
    return [folder for folder in dict.fromkeys(folders) if (folder / "ncu_report.py").is_file()]


def _beside(real: Path) -> list[Path]:
    """Toolkits put a script named ncu on PATH, which starts the newest nsight-compute folder beside or under /opt/nvidia."""
    roots = [*real.parents[:3], Path("/opt/nvidia/nsight-compute"), Path("/usr/lib")]
    patterns = ("nsight-compute*/extras/python", "*/extras/python", "nsight-compute*/*/extras/python")
    return sorted({path for root in roots if root.is_dir() for pattern in patterns for path in root.glob(pattern)}, reverse=True)
