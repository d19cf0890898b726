"""`opwise seeds`: its table, its workers, what it stores, and the document that quotes a stored run."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import support
from invoking import command
from support import needs
from typer.testing import CliRunner

from opwise import library
from opwise.cli import app
from opwise.seeds import plot, store, tables
from opwise.seeds.experiment import CHECK, COMPILE, DIFFERS, ELSEWHERE, FAILED, LANES, NEEDS, SHOWN, TIMED, Experiment, Outcome
from opwise.seeds.gpus import GPUS
from opwise.seeds.running import carried_out
from opwise.seeds.table import EXPERIMENTS, UnknownExperiment, chosen
from opwise.timeline.trace import read

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "seeds.md"
BLOCK = re.compile(r"<!-- opwise seeds --recorded --markdown -->\n(.*?)\n<!-- end -->", re.DOTALL)
NOTHING_YET = "No run of a GPU is recorded yet."


invoke = command("seeds", CUDA_VISIBLE_DEVICES="")


def a_run(*outcomes: Outcome, device: str = "NVIDIA Toy") -> store.SeedRun:
    facts = {"device": device, "driver": "1.0", "commit": "abc1234", "dirty": False, "versions": {"torch": "2.0"}}
    return replace(store.made(facts, outcomes, 12.0), time="2026-01-02T03:04:05+00:00")


ROWS = tuple({"columns": n, "way": way, "us": 1.0, "gb_per_s": float(n)} for way in ("Triton", "limit") for n in (256, 512))
SOME = (
    Outcome("squares", SHOWN, "190 / 190 / 190 us", "alike", 190.0, 2500.0, 188.0, 3266.0, {"x * x, cold, us": 190.0}),
    Outcome("softmax-sweep", DIFFERS, "3000 GB/s", "Triton | ahead\nat <3> sizes", rows=ROWS),
    Outcome("gelu", FAILED, found="RuntimeError: [bold]no[/]"),
    Outcome("hta", ELSEWHERE, found="opwise timeline"),
)


# -- the table ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_every_experiment_can_be_found_and_says_what_it_needs(experiment: Experiment) -> None:
    assert experiment.published.gpu in {"", *GPUS}
    assert experiment.lane in LANES
    assert experiment.cpu_lane in (CHECK, COMPILE)
    if experiment.published.us is not None:
        assert experiment.published.gpu, "a figure is of a GPU"
        if experiment.published.work is not None:
            assert GPUS[experiment.published.gpu].limit_us(experiment.published.work) < experiment.published.us, (
                "faster than its GPU allows"
            )
    assert not (experiment.published.ours and experiment.published.us), "nothing is compared with what no source holds"
    if experiment.elsewhere:
        assert not experiment.run
        return
    module, _, function = experiment.run.partition(":")
    assert importlib.util.find_spec(module) is not None
    assert re.search(rf"^def {function}\(place: Place", Path(importlib.util.find_spec(module).origin or "").read_text(), re.MULTILINE)
    assert f"`{experiment.name}`" in DOCUMENT.read_text(), "docs/seeds.md explains each"


def test_names_are_chosen_whole_or_by_their_parts() -> None:
    assert [e.name for e in chosen([])] == list(EXPERIMENTS)
    assert [e.name for e in chosen(["gelu"])] == ["gelu"], "a whole name is that one"
    assert [e.name for e in chosen(["softmax", "squares"])] == ["squares", "softmax-sweep", "softmax-odd", "fault-softmax-unshifted"]
    with pytest.raises(UnknownExperiment, match="'sqare' is no part .* known are squares, "):
        chosen(["sqare"])


def test_a_figure_that_no_source_holds_is_marked_and_not_compared() -> None:
    """Also where an older run stored what it had compared with it."""
    was = Outcome("gelu", SHOWN, "505 us", "fused", 505.0, 640.0, 500.0, 1100.0)
    assert (was.ratio, was.limits_ratio) == (pytest.approx(1100 / 505), 1.28)
    _, published, _, ratio, limits, sol, _ = tables.cells(EXPERIMENTS["gelu"], was, "")
    assert published.startswith("ours: 8.1 / 1.1")
    assert (ratio, limits, sol) == ("", "", "0.99")


# -- workers -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_an_experiment_breaks_costs_itself_alone() -> None:
    limits = {"raising": 60.0, "otherwise": 60.0, "hanging": 1.0, "aborting": 60.0}
    known = [Experiment("fine", "x", "x", "seed_trouble:fine", cpu_lane=TIMED)]
    known += [Experiment(name, "x", "x", f"seed_trouble:{name}", seconds=limit) for name, limit in limits.items()]
    known += [
        Experiment("far", "x", "x", "seed_trouble:aborting", needs="a GPU: it is far"),
        Experiment("hta", "x", "x", elsewhere="opwise"),
    ]
    events = list(carried_out(known, "cpu"))
    found = {p.outcome.name: p.outcome for p in events if p.outcome is not None}
    assert [(p.experiment.name, p.outcome is None) for p in events][-2:] == [("fine", True), ("fine", False)], "what is timed comes alone"
    assert {name: o.status for name, o in found.items()} == {
        "raising": FAILED, "otherwise": DIFFERS, "aborting": FAILED, "fine": SHOWN, "hanging": FAILED, "far": NEEDS, "hta": ELSEWHERE,
    }  # fmt: skip
    assert found["raising"].found == "RuntimeError: boom [bold]not markup[/]"
    assert "killed by SIGABRT" in found["aborting"].found
    assert found["hanging"].found == "not done after 1 s"
    assert found["far"].found == "needs a GPU: it is far"
    assert found["fine"].found == "on cpu"


@pytest.mark.slow
def test_the_command_runs_stores_and_prints(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    told = invoke("fault-mean-scalar", "squares", "--device", "cpu", "--json", "-o", str(path))
    assert told.exit_code == 0, told.output
    data = json.loads(told.stdout)
    assert data == json.loads(path.read_text())
    states = {o["name"]: o["status"] for o in data["outcomes"]}
    assert states == {"squares": NEEDS, "fault-mean-scalar": SHOWN}
    (scalar,) = (o for o in data["outcomes"] if o["name"] == "fault-mean-scalar")
    assert scalar["figures"] == {"loop, widest load, bytes": 4, "block, widest load, bytes": 16}
    assert all(o["us"] is None for o in data["outcomes"]), "no time of a GPU comes from a CPU"
    assert data["device"] == "cpu"


@pytest.mark.slow
@support.needs_gpu
def test_on_a_gpu_what_is_not_timed_comes_out_as_published() -> None:
    names = ["trace", "triton-mean", "stacks", "kernel-names", "launch-blocking", "dynamo", "fault-gelu", "fault-softmax"]
    told = CliRunner(env={"TERM": "dumb"}).invoke(app, ["seeds", *names, "--json"])
    found = {o["name"]: (o["status"], o["found"]) for o in json.loads(told.stdout)["outcomes"]}
    assert {status for status, _ in found.values()} == {SHOWN}, found


@pytest.mark.slow
def test_what_experiments_write_is_kept_and_their_tables_are_printed(tmp_path: Path) -> None:
    told = invoke("trace", "stacks", "--device", "cpu", "--keep", str(tmp_path / "kept"), "-o", str(tmp_path / "run.json"))
    assert told.exit_code == 0, told.output
    assert "Self CPU time total" in told.stdout
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"mean_trace.json", "stacks.txt", "stacks-tables.txt"}
    assert sum(call.name.startswith("mean ") for call in read(tmp_path / "kept" / "mean_trace.json").ranges) == 10
    stored = store.read(tmp_path / "run.json").outcomes
    assert [sorted(outcome.tables) for outcome in stored] == [[], ["key_averages(group_by_stack_n=5)"]]
    assert not any(outcome.files for outcome in stored), "a trace is no part of a stored run"


# -- the command -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "known are squares"),
        (("--json", "--markdown"), "exclude each other"),
        (("--recorded", "-o", "x.json"), "shows a stored run"),
        (("--list", "--markdown"), "--list runs nothing"),
        (("--device", "cuda:99"), "is not here"),
    ],
)
def test_bad_usage_is_refused(arguments: tuple[str, ...], said: str) -> None:
    told = invoke(*arguments)
    assert told.exit_code == 2
    assert said in " ".join(told.output.split())


def test_the_list_names_all_and_what_they_need() -> None:
    told = invoke("--list")
    assert told.exit_code == 0
    assert all(f"  {name} " in told.output for name in EXPERIMENTS)
    assert "(see opwise timeline)" in told.output
    assert "(needs a GPU)" in told.output
    assert [json.loads(line)["name"] for line in invoke("--list", "--json").output.splitlines()] == list(EXPERIMENTS)
    assert "opwise seeds squares gelu" in " ".join(invoke("--help").output.split())


def test_a_recorded_run_is_shown_and_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("matplotlib", "plotly")
    monkeypatch.setattr(library, "shipped", lambda: tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    told = invoke("--recorded")
    assert told.exit_code == 2
    assert "opwise seeds -o results" in " ".join(told.output.split())
    assert store.write(a_run(*SOME, device="cpu"), tmp_path / "results").parent.name == "cpu"
    assert invoke("--recorded").exit_code == 2, "a run without a GPU is not what was recorded"
    store.write(a_run(*SOME), tmp_path / "results")
    newest = replace(a_run(SOME[0], device="NVIDIA Newer"), time="2026-01-03T00:00:00+00:00")
    store.write(newest, tmp_path / "shipped")
    assert invoke("--recorded", "squares").output.startswith("NVIDIA Newer")
    assert "on NVIDIA Newer: opwise seeds --recorded" in invoke("squares", "--device", "cpu").output
    (tmp_path / "shipped" / "nvidia-newer").rename(tmp_path / "aside")
    told = invoke("--recorded", "--plot", str(tmp_path / "plots"))
    assert told.exit_code == 1, "an experiment failed in it"
    text = " ".join(told.output.split())
    assert "17.2" in text
    assert "13.3" in text
    assert "[bold]no[/]" in text
    assert "3.266 / 3.276 / 3.274 ms (T4)" in " ".join(invoke("--recorded", "squares", "--markdown").output.split())
    assert {p.suffix for p in (tmp_path / "plots").iterdir()} == {".html", ".svg", ".png"}
    page = (tmp_path / "plots" / f"{plot.NAME}.html").read_text()
    assert "NVIDIA Toy" in page
    assert not re.search(r"<script[^>]* src=", page), "the page asks no network for anything"


# -- the store ---------------------------------------------------------------------------------------------------------------


def test_a_run_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    run = a_run(*SOME)
    path = store.write(run, tmp_path)
    assert path == tmp_path / "nvidia-toy" / "20260102T030405Z-seeds-abc1234.json"
    assert store.read(path) == run
    assert run.outcomes[0].ratio == pytest.approx(3266 / 190)
    assert run.outcomes[0].limits_ratio == pytest.approx(2500 / 188)
    assert run.outcomes[0].sol == pytest.approx(188 / 190)
    assert store.write(run, tmp_path / "own.json") == tmp_path / "own.json"
    assert library.stored(tmp_path, "nvidia-toy") == [], "a run of the experiments is no run of kernels"


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is no JSON"), ("[]", "no run of the experiments"), ('{"kind": "seeds", "schema": 99}', "99")]
)
def test_what_is_no_run_is_said_so(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(store.BadFile, match=said):
        store.read(tmp_path / "x.json")


# -- the document ------------------------------------------------------------------------------------------------------------


def test_the_document_holds_what_the_newest_recorded_run_says() -> None:
    found = BLOCK.search(DOCUMENT.read_text())
    assert found, "docs/seeds.md has the table between the command that makes it and <!-- end -->"
    try:
        run = store.recorded([ROOT / "results"])
    except store.NothingRecorded:
        assert found[1].startswith(NOTHING_YET)
        return
    assert found[1] == tables.markdown(run), "run `opwise seeds --recorded --markdown` and put its output into docs/seeds.md"
