"""What `opwise profile` asks of other tools: a child that launches synchronously, CUPTI, Nsight Compute."""

from __future__ import annotations

import ctypes
import io
import shutil
import subprocess
from pathlib import Path

import faulty
import pytest
import support
from rich.console import Console

from opwise.backends import BACKENDS
from opwise.profiling import blocking, cupti, ncu, tables

DEVICE = str(support.DEVICE)
WORKLOAD = "softmax/4096x4096/float16"


def test_a_child_that_dies_in_a_synchronous_launch_is_told_with_its_launch() -> None:
    outcome = blocking.blocked("faulty/square:abort", "square/257/float32", DEVICE, 2, setup=faulty.install)
    assert outcome.launches == 1
    assert not [part for part in ("launch 1", "during launch", "SIGABRT") if part not in outcome.line], outcome.line


def test_what_a_launch_raises_is_told_and_what_is_well_has_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "faulty", "faulty")  # type: ignore[arg-type]
    turns: list[tuple[str, str]] = []
    found = [
        blocking._launches(lambda *turn: turns.append(turn), f"faulty/square{variant}", "square/257/float32", DEVICE, 2)
        for variant in (":raises", "")
    ]
    assert [(o.launches, o.stage, o.error) for o in found] == [(1, "launch", "RuntimeError: boom [bold]not markup[/]"), (2, "", "")]
    assert [phase for name, phase in turns if not name.startswith(blocking.KERNEL)] == [
        *("build", "make inputs", "build", "wrap", "launch"),
        *("build", "make inputs", "build", "wrap", "launch", "wrap", "launch"),
    ]


@support.needs_gpu
def test_an_illegal_address_is_told_with_its_kernel() -> None:
    outcome = blocking.blocked("faulty/square:illegal", "square/257/float32", DEVICE, 2, setup=faulty.install)
    assert "index" in outcome.kernel, (outcome.line, outcome.note)  # index_fill_ of torch, which the variant gives an index too far
    assert outcome.stage == "launch"


@pytest.fixture(scope="module")
def fake_cupti(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler, which the stand-in of libcupti is built by")
    built = tmp_path_factory.mktemp("cupti") / "libfake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(built), str(Path(__file__).with_name("fake_cupti.c"))], check=True)
    return ctypes.CDLL(str(built))


def test_kernels_are_named_by_cuptis_callbacks(fake_cupti: ctypes.CDLL) -> None:
    told: list[str] = []
    with cupti.watched(told.append, fake_cupti) as launched:
        fake_cupti.call(cupti.DRIVER_API, b"cuLaunchKernelEx", b"_Z12softmax_rowsPfi")
        fake_cupti.call(cupti.DRIVER_API, b"cuMemAlloc_v2", None)
        fake_cupti.call(cupti.RUNTIME_API, b"cudaLaunchKernel_v7000", b"softmax_rows_f16_8")
    fake_cupti.call(cupti.RUNTIME_API, b"cudaLaunchKernel_v7000", b"after")
    assert told == launched.names == ["softmax_rows(float*, int)", "softmax_rows_f16_8"]
    assert launched.missing == ""
    assert ctypes.c_int.in_dll(fake_cupti, "enabled_domains").value == cupti.DRIVER_API + cupti.RUNTIME_API


def test_a_second_subscriber_is_refused_with_the_reason(fake_cupti: ctypes.CDLL) -> None:
    fake_cupti.refuse(39)
    try:
        with cupti.watched(print, fake_cupti) as launched:
            assert "status 39" in launched.missing
    finally:
        fake_cupti.refuse(0)


# -- Nsight Compute ------------------------------------------------------------------------------------------------------------

DURATION, DRAM = "gpu__time_duration.sum", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
CSV = f'==PROF== Disconnected\n"ID","Kernel Name","{DURATION}","{DRAM}","odd"\n"","","us","%",""\n"0","rows","1,018.5","91.2","x"\n'
FAKE = """#!/bin/sh
case "$1" in
--import) cat "$(dirname "$0")/report.csv" ;;
*) echo "$@" > "$(dirname "$0")/asked"
   while [ "$1" != "--export" ]; do shift; done
   {deed} ;;
esac
"""


def fake_ncu(folder: Path, deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "ncu").write_text(FAKE.replace("{deed}", deed))
    (folder / "ncu").chmod(0o755)
    (folder / "report.csv").write_text(CSV)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_counters_come_from_one_launch_between_start_and_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu(tmp_path / "bin", 'touch "$2"', monkeypatch)
    monkeypatch.setattr(ncu, "module_folders", lambda path: [])  # whatever is installed here: what ncu exports is read
    found = ncu.counted("triton_jit/softmax", WORKLOAD, "cuda:0", keep=tmp_path / "kept" / "a.ncu-rep")
    assert [(c.kernel, c.name, c.value, c.unit) for c in found] == [
        ("rows", "duration", 1018.5, "us"),
        ("rows", "DRAM throughput", 91.2, "%"),
    ]
    asked = (tmp_path / "bin" / "asked").read_text()
    for wanted in ("--profile-from-start off", "--clock-control none", "--section SpeedOfLight --section MemoryWorkloadAnalysis",
                   f"-m opwise.profiling.once triton_jit/softmax {WORKLOAD} cuda:0"):  # fmt: skip
        assert wanted in asked
    assert (tmp_path / "kept" / "a.ncu-rep").is_file()
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(tables.counters(found))
    assert "1,018.5 us" in console.export_text()


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no permission' ; exit 1", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("echo '==ERROR== The application returned an error code (1).' ; exit 1", "exit status 1 and no report: The application returned"),
    ],
)
def test_what_ncu_refuses_is_one_line_with_the_remedy(deed: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ncu(tmp_path / "bin", deed, monkeypatch)
    with pytest.raises(ncu.NcuRefused, match=said) as refused:
        ncu.counted("triton_jit/softmax", WORKLOAD, "cuda:0")
    assert "\n" not in str(refused.value)


def test_a_missing_ncu_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ncu.NcuRefused, match="no ncu on PATH: install Nsight Compute"):
        ncu.command(Path("r"), "triton_jit/softmax", WORKLOAD, "cuda:0")
