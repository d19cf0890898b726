"""`opwise tune`: real configurations through a run's own checks, by a played clock; what is kept of it; and what the command says."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import invoking
import pytest
import torch
from played_clock import InProcess
from recorded_runs import around
from support import DEVICE, needs_gpu
from tuned_tables import FACTS, forget, known_ways, row, table

from opwise.backends import BACKENDS, implementations, tuned, tuned_table
from opwise.backends.tuned_table import TUNABLE
from opwise.commands import tune as command
from opwise.commands.executors import Ready
from opwise.ops.spec import Workload
from opwise.record import Record
from opwise.runner import Job
from opwise.runner.survey import Survey
from opwise.runner.worker import record_facts
from opwise.tuning import bench, measuring, planning, standing
from opwise.tuning.measuring import Happened, carried_out

MEAN = "triton_jit/mean"
SMALL = [Workload("mean", (n,), "float32") for n in (3_000, 7_000)]
CPU = torch.device("cpu")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of tables; what installing a bench changes in this process is undone. Three configurations of mean are enough."""
    known_ways(MEAN)
    from opwise.backends.triton_jit import mean

    monkeypatch.setattr(mean, "shipped", lambda *_: mean.SHIPPED)
    monkeypatch.setattr(mean, "SHARES", (mean.SHIPPED, mean.Share(256, 2, 4), mean.Share(1024, 8, 2)))
    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    monkeypatch.setitem(BACKENDS, "tune_triton_jit", "")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "opwise.tuning.tune_triton_jit", None)  # type: ignore[arg-type]
    monkeypatch.setattr(measuring, "Seat", InProcess)
    monkeypatch.setattr(InProcess, "us", staticmethod(lambda name: 10.0))
    monkeypatch.setattr(InProcess, "lost", frozenset())
    implementations.cache_clear()
    return tmp_path


def sheets(*workloads: Workload) -> list[planning.Sheet]:
    return planning.planned(lambda name, phase: None, [MEAN], workloads, False, None, "cpu")


def happened(root: Path, *workloads: Workload) -> list[Happened]:
    return list(carried_out(sheets(*workloads), FACTS, "cpu", root))


def test_every_configuration_is_checked_timed_and_the_quickest_is_in_force(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sheet,) = sheets(SMALL[0])
    names = sheet.stand.configurations
    assert len(names) == 3
    winner = names[-1]
    monkeypatch.setattr(InProcess, "us", staticmethod(lambda name: 9.0 if name == winner else 10.0))
    *_, last = happened(root, SMALL[0])
    assert last.table is not None
    assert last.table == tuned_table.read(tuned_table.path_of(root, MEAN, FACTS["device"]))
    (kept,) = last.table.rows
    assert kept.times.keys() == set(names), "all were right and timed"
    assert all(0 < t.error_ratio <= 1 for t in kept.times.values()), "the suite's own check"
    assert (kept.chosen, kept.shipped, kept.gain) == (winner, "512x4x4", pytest.approx(10 / 9))
    assert tuned.Choices(last.table).pick("float32", (3_000,), names) == winner


def test_a_tie_keeps_what_ships(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InProcess, "us", staticmethod(lambda name: 10.0 if name == "512x4x4" else 9.95))
    (kept,) = [event.row for event in happened(root, SMALL[0]) if event.row]
    assert kept.chosen == kept.shipped == "512x4x4"


def test_a_configuration_is_what_the_kernel_is_built_with(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name gives the grid that it says, and what is no configuration, or not asked for, is refused."""
    from opwise.backends.triton_jit import mean

    grids = []
    monkeypatch.setattr(
        mean, "built", lambda kernel, grid, *samples, **fixed: grids.append((grid[0], fixed.get("LOADS"), fixed["num_warps"]))
    )
    x, out = torch.empty(200_000), torch.empty(())
    for name in ("256x2x4", "1024x8x2"):
        bench.built(mean.build, MEAN, name)(x, out)
    assert grids == [(39, 2, 8), (8, 8, 32)]  # of the interpreter's two multiprocessors: 98 and 7 steps, and one that adds
    with pytest.raises(bench.UnsupportedWorkload, match="7x7x7 is not among what"):
        bench.built(mean.build, MEAN, "7x7x7")(x, out)
    with pytest.raises(bench.UnsupportedWorkload, match="does not ask the table"):
        bench.built(mean.VARIANTS["plain"].build, MEAN, "256x2x4")(x, out)
    with pytest.raises(bench.UnsupportedWorkload, match="the GPU is too small for it: 300 KiB"):
        bench.built(too_large, MEAN, "256x2x4")(x, out)
    assert tuned.look(MEAN, CPU) is tuned.SHIPPED, "nothing is forced any more"


def too_large(*tensors: torch.Tensor) -> Any:
    """As Triton refuses: by an error whose class is imported with Triton alone."""
    raise type("OutOfResources", (Exception,), {})("300 KiB asked for, 227 there")


def test_whoever_stops_keeps_the_finished_rows_and_goes_on_from_them(root: Path) -> None:
    for event in (events := carried_out(sheets(*SMALL), FACTS, "cpu", root)):
        if event.row is not None:
            events.close()  # as Ctrl-C does
    path = tuned_table.path_of(root, MEAN, FACTS["device"])
    assert [r.workload for r in tuned_table.read(path).rows] == [str(SMALL[0])]
    happened(root, SMALL[1])
    assert [r.workload for r in tuned_table.read(path).rows] == [str(w) for w in SMALL]
    tuned_table.write(table(MEAN, *tuned_table.read(path).rows, driver="0.9"), root)
    happened(root, SMALL[1])
    assert [r.workload for r in tuned_table.read(path).rows] == [str(SMALL[1])], "rows of another driver do not count beside today's"


def test_what_is_wrong_is_not_in_the_table_and_is_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(name: str, **changed: Any) -> Record:
        timed = around(us := 5.0 if name == "quick" else 6.0)
        return Record.of(f"tune_triton_jit/mean:{name}", SMALL[0], **{"status": "ok", "kernel_cold_us": timed,
                         "versus_best": (us / 5, us / 5, us / 5)} | changed)  # fmt: skip

    job = Job(SMALL[0], (), "cpu")
    broken = record("quick", status="wrong", reason="3 of 9 elements", kernel_cold_us=None)
    found, why = measuring.row_of(job, [broken, record("512x4x4", versus_best=(1.0, 1.0, 1.0))], "512x4x4")
    assert found is not None
    assert (found.chosen, measuring.wrong(found), why) == ("512x4x4", {"quick": "wrong: 3 of 9 elements"}, "")
    nothing, why = measuring.row_of(job, [broken], "quick")
    assert nothing is None
    assert why == "mean/3000/float32: the shipped choice quick has no time: wrong: 3 of 9 elements"
    monkeypatch.setattr(InProcess, "lost", frozenset({str(SMALL[0])}))
    events = happened(root, *SMALL)
    assert [e.row.workload for e in events if e.row] == [str(SMALL[1])], "a lost worker costs its workload"
    assert "the GPU fell off the bus" in "".join(e.lost for e in events)


def test_a_configuration_is_chosen_by_both_states_of_the_clock() -> None:
    def record(name: str, full: float, capped: float | None) -> Record:
        made = Record.of(f"tune_triton_jit/mean:{name}", SMALL[0], status="ok", kernel_cold_us=around(full), versus_best=(full / 8,) * 3)
        if capped is None:
            return made
        return replace(made, kernel_capped_us=around(capped), capped_versus_best=(capped / 9,) * 3)

    records = [record("shipped", 10.0, 10.0), record("at full", 8.0, 16.0), record("capped", 15.0, 9.0), record("in both", 9.0, 9.5)]
    row, _ = measuring.row_of(Job(SMALL[0], (), "cpu"), records, "shipped")
    assert row is not None
    assert (row.chosen, row.times["in both"].us) == ("in both", round((9.0 * 9.5) ** 0.5, 4))
    tie, _ = measuring.row_of(Job(SMALL[0], (), "cpu"), [*records[:3], record("in both", 9.95, 10.04)], "shipped")
    assert tie is not None
    assert tie.chosen == "shipped"
    old, _ = measuring.row_of(Job(SMALL[0], (), "cpu"), [*records, replace(records[2], variant="old", kernel_cold_us=None)], "shipped")
    assert old is not None
    assert (old.chosen, old.times["in both"].us) == ("capped", 9.5), "all in the state that all have"


@needs_gpu
@pytest.mark.slow
def test_on_a_gpu_a_table_is_measured_and_asked_by_the_next_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload, facts = Workload("mean", (1 << 20,), "float16"), record_facts(DEVICE)
    made = planning.planned(lambda name, phase: None, [MEAN], [workload], False, None, str(DEVICE))
    *_, last = carried_out(made, facts, str(DEVICE), tmp_path)
    assert last.table is not None
    assert last.table.rows[0].times.keys() == set(made[0].stand.configurations), "every configuration is right on this GPU"
    monkeypatch.setenv(tuned_table.VARIABLE, str(tmp_path))
    forget()
    assert tuned.look(MEAN, DEVICE).table == last.table
    assert tuned.in_force("triton_jit", "mean", DEVICE) == last.table.digest == standing.in_force("triton_jit", "mean", facts)
    forget()


# -- the command -------------------------------------------------------------------------------------------------------------


invoke = invoking.command("tune")


class AskedHere:
    """A worker whose answers are computed in this process."""

    def __init__(self, device: str) -> None: ...

    def __enter__(self) -> AskedHere:
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self, kind: str, payload: tuple[Any, ...], patience: object) -> Any:
        return payload[0](lambda name, phase: None, *payload[1:])


@pytest.fixture
def on_toy(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command on a GPU that is the CPU in truth."""
    here = Ready(Survey("cpu", FACTS, {}))
    monkeypatch.setattr(command, "chosen_device", lambda name: "cuda:0")
    monkeypatch.setattr(command, "ready", lambda device, share: nullcontext(here))
    monkeypatch.setattr(command, "Worker", AskedHere)
    return root


def test_it_measures_stores_and_shows(on_toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InProcess, "us", staticmethod(lambda name: 8.0 if name.startswith("256x2") else 10.0))
    told = invoke(str(SMALL[0]))
    assert told.exit_code == 0, told.output
    assert f"{MEAN}: 1 workloads measured through triton_jit" in told.output
    assert f"stored in {tuned_table.path_of(on_toy, MEAN, FACTS['device'])}" in told.output
    monkeypatch.setenv(tuned_table.VARIABLE, str(on_toy))  # a worker's setup had left it off
    shown = " ".join(invoke("--show", "--device", "nvidia-toy").output.split())
    assert f"{SMALL[0]} │ 256x2x4 │ 8 │ 7.992 to 8.008 │ 512x4x4 │ 10 │ 1.250" in shown
    assert "float32, other sizes: the shipped table (too few workloads for another rule)" in shown
    assert json.loads(invoke("--show", "--device", "nvidia-toy", "--json").output)["rows"][0]["chosen"] == "256x2x4"
    assert f"removed of nvidia-toy: {MEAN}" in invoke("--reset", "--device", "nvidia-toy").output
    assert "nothing, no such table" in invoke("--reset", "--device", "nvidia-toy").output


def test_a_workload_that_came_to_nothing_fails_the_command(on_toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InProcess, "lost", frozenset({str(SMALL[0])}))
    told = invoke(str(SMALL[0]))
    assert told.exit_code == 1
    assert "the GPU fell off the bus" in told.output


def test_without_a_gpu_it_says_what_it_needs_and_what_it_would_measure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Worker", AskedHere)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = invoke("mean")
    assert told.exit_code == 1
    assert "run it on the machine with that GPU; --dry-run says" in " ".join(told.output.split())
    planned = invoke("mean", "--dry-run", "--quick").output
    assert "as on an NVIDIA H100" in planned
    assert f"{MEAN} │ triton_jit │         2 │" in planned
    assert "none: opwise tune, on a machine with a GPU, makes them" in invoke("--show").output
    tuned_table.write(table(MEAN, row("mean/8/float32", "512x4x4", {"512x4x4": 2.0})), root)
    assert "mean/8/float32" in invoke("--show").output
    assert "--device with one of nvidia-toy" in " ".join(invoke("--reset").output.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gelu"], "no table is for gelu: there are triton_jit/matmul (of triton_jit), cuda_src/matmul (of cupy_raw and torch_inline)"),
        (["mean", "--backend", "cupy_raw"], "no table is for mean in cupy_raw"),
        (["soft"], "'soft' is no op and no workload"),
        (["mean", "matmul/8x8x8/float16"], "ops and workloads exclude each other"),
        (["--show", "--reset"], "give one of them"),
        (["--show", "--quick"], "give one of them"),
        (["--reset", "--json"], "--reset has none"),
    ],
)
def test_bad_usage_says_what_is_taken(arguments: list[str], says: str) -> None:
    told = invoke(*arguments)
    assert told.exit_code == 2
    assert says in " ".join(told.output.split())


def test_every_table_names_what_is_there() -> None:
    for known in TUNABLE.values():
        assert known.source, f"{known.name} has sources"
        assert set(known.serves) <= set(BACKENDS)
