"""`opwise timeline` as a user meets it: tables, JSON, one clear line for what cannot be done, and recording in a worker."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from invoking import invoke
from small_traces import GRAPH, ONE_STREAM, TWO_STREAMS, call, event, kernel, trace, written
from support import WITHOUT, needs, needs_gpu

from opwise.backends import BACKENDS
from opwise.timeline import analysis, hta, recording
from opwise.timeline import trace as traces
from opwise.timeline.trace import ABOUT


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    ranges = (event("user_annotation", "ProfilerStep#1", 0, 30), event("user_annotation", "ProfilerStep#2", 40, 60))
    made = {"one": (*ONE_STREAM, *ranges), "two": TWO_STREAMS, "graph": GRAPH, "cpu": ONE_STREAM[1:3], "runtime": ONE_STREAM[3:5]}
    found = {name: written(folder / f"{name}.json.gz", trace(events)) for name, events in made.items()}
    found["torn"] = folder / "torn.json.gz"
    found["torn"].write_bytes(found["one"].read_bytes()[:-30])
    found["text"] = folder / "notes.txt"
    found["text"].write_text("softmax was slow\n")
    return found


def test_the_tables_hold_the_figures_worked_out(files: dict[str, Path]) -> None:
    result = invoke("timeline", "--from", str(files["one"]))
    assert result.exit_code == 0, result.output
    for figure in ("227.000", "40.000", "17.6 %", "141.000 (62.1 %)", "6.000 (2.6 %)", "40.000 (17.6 %)", "11 % / 3 % / 87 %",
                   "cuLaunchKernelEx", "119.000", "0.90", "12.7 %", "100.0", "1 of 6 GPU activities have no launch"):  # fmt: skip
        assert figure in result.stdout, figure


def test_json_is_a_trace_a_line_and_then_the_difference(files: dict[str, Path]) -> None:
    result = invoke("timeline", "--from", str(files["one"]), "--against", str(files["two"]), "--json")
    assert result.exit_code == 0, result.output
    a, b, between = (json.loads(line) for line in result.stdout.splitlines())
    assert (a["devices"][0]["busy_us"], a["devices"][0]["host_wait_us"], a["unlinked"]) == (40.0, 141.0, 1)
    assert (b["kind"], b["devices"][0]["name"], [s["stream"] for s in b["streams"]]) == ("timeline", "NVIDIA H200", ["7", "9"])
    assert between["kind"] == "difference"
    assert {"what": "span", "unit": "us", "a": 227.0, "b": 50.0} in between["rows"]


def test_the_threshold_and_the_range_are_taken(files: dict[str, Path]) -> None:
    result = invoke("timeline", "--from", str(files["one"]), "--kernel-wait", "3", "--within", "ProfilerStep#1", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["kernel_wait_us"] == 3.0
    assert (data["devices"][0]["activities"], data["devices"][0]["span_us"], data["devices"][0]["kernel_wait_us"]) == (2, 21.0, 1.0)


def test_a_trace_of_the_cpu_alone_says_so_and_shows_its_operators(files: dict[str, Path]) -> None:
    result = invoke("timeline", "--from", str(files["cpu"]))
    assert result.exit_code == 0, result.output
    assert "no GPU activity" in result.stdout.replace("\n", " ")
    assert re.search(r"aten::softmax +│ +1 │ +10\.000 │ +4\.000", result.stdout)


@pytest.mark.parametrize(
    ("arguments", "status", "needles"),
    [
        (["--from", "{torn}"], 2, ["torn.json.gz", "torn gzip"]),
        (["--from", "{text}"], 2, ["notes.txt", "no JSON", "export_chrome_trace"]),
        (["--from", "{runtime}"], 2, ["runtime.json.gz", "no GPU activity", "ProfilerActivity.CUDA"]),
        (["--from", "no-such-trace.json"], 2, ["no-such-trace.json"]),
        (["--from", "{one}", "--against", "{torn}"], 2, ["torn.json.gz"]),
        (["--from", "{one}", "--within", "warm"], 2, ["warm", "ProfilerStep#1, ProfilerStep#2"]),
        (["--from", "{one}", "--within", "Step", "--hta"], 2, ["--hta", "--within"]),
        (["--from", "{one}", "--plot", "x.pdf"], 2, [".pdf", ".html, .svg, .png"]),
        (["--from", "{cpu}", "--plot", "x.html"], 1, ["no GPU activity to draw"]),
        (["triton_jit/softmax", "--from", "{one}"], 2, ["--from", "no implementation"]),
        ([], 2, ["IMPLEMENTATION", "--from"]),
        (["triton_jit/softmax"], 2, ["WORKLOAD"]),
        (["triton_jit/sofmax", "softmax/4x4/float32"], 2, ["sofmax", "triton_jit/softmax", *BACKENDS]),
        (["triton_jit/softmax", "gelu/4x4/float32"], 2, ["gelu", "softmax/"]),
        (["triton_jit/softmax", "softmax/4y4/float32"], 2, ["4y4", "softmax/4096x4096/float16"]),
        (["triton_jit/softmax", "softmax/4x4/float32", "--trace", "trace.txt"], 2, ["trace.txt", ".json.gz"]),
        (["triton_jit/softmax", "softmax/4x4/float32", "--against", "torch_eager/gelu"], 2, ["torch_eager/gelu", "softmax"]),
        (["triton_jit/softmax", "softmax/4x4/float32", "--device", "gpu"], 2, ["cuda:0"]),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, needles: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("timeline", *(text.format(**files) if text.startswith("{") else text for text in arguments))
    assert result.exit_code == status, result.output
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1
    assert all(needle in lines[0] for needle in needles), lines


@pytest.mark.xdist_group("hta")
def test_hta_s_figures_stand_beside_ours(files: dict[str, Path]) -> None:
    needs("hta")
    result = invoke("timeline", "--from", str(files["one"]), "--hta")
    assert result.exit_code == 0, result.output
    assert re.search(r"stream 7: host wait us +│ 141\.000 │ 141\.000", result.stdout)
    assert re.search(r"computation us +│ +30\.000 │ +30\.000", result.stdout)
    assert re.search(r"launches with their kernel +│ +5 │ +3", result.stdout)


@pytest.mark.xdist_group("hta")
def test_an_operator_that_names_its_stream_is_no_kernel(tmp_path: Path) -> None:
    """As torch announces a Triton kernel of Inductor's (HTA's tests/data/triton_example): HTA takes it for the GPU's."""
    name = "triton_poi_fused_add_cos_sin_0"
    events = (event("cpu_op", name, 0, 95.812, stream=0), call("cuLaunchKernel", 45.108, 47.768, 35), kernel(name, 90.534, 1.76, 35))
    path = written(tmp_path / "triton.json", trace(events))
    assert analysis.Timeline.of(traces.read(path)).devices[0].breakdown.span == 1760
    if importlib.util.find_spec("hta"):
        result = invoke("timeline", "--from", str(path), "--hta")
        assert re.search(r"span us +│ +1\.760 │ +95\.812", result.stdout), "docs/timeline.md tells of the difference"


def test_hta_that_is_not_installed_is_a_remedy(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> Any:
        raise ImportError("hta")

    monkeypatch.setattr(hta.importlib, "import_module", missing)
    result = invoke("timeline", "--from", str(files["one"]), "--hta")
    assert result.exit_code == 1
    assert "pip install 'opwise[timeline]'" in result.stderr


# -- recording ---------------------------------------------------------------------------------------------------------------


def test_recording_in_a_worker_keeps_the_trace_and_counts_the_calls(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json.gz"
    result = invoke(
        "timeline", "torch_eager/square", "square/33/float32", "--calls", "7", "--device", "cpu", "--trace", str(kept), "--json"
    )
    assert result.exit_code == 0, result.output
    assert "holds no GPU activity" in result.stderr.replace("\n", " ")
    data = json.loads(result.stdout)
    assert (data["name"], data["calls"], data["devices"]) == ("torch_eager/square at square/33/float32", 7, [])
    assert {row["count"] for row in data["operators"]} == {7}, "warm-up calls are cut away"
    document = json.loads(gzip.decompress(kept.read_bytes()))
    assert document[ABOUT]["calls"] == 7
    again = json.loads(invoke("timeline", "--from", str(kept), "--json").stdout)
    assert again == data, "the name and the number of calls stay with the file"


def test_the_cut_begins_with_the_cpu_s_range() -> None:
    label = recording.capture.PREFIX + recording.LABEL
    before, after = kernel("warm", 0, 1, 1), kernel("k", 20, 1, 2)
    on_gpu, on_cpu = event("gpu_user_annotation", label, 19, 5), event("user_annotation", label, 10, 30)
    meta = {"ph": "M", "name": "process_name", "ts": 0, "pid": 0}
    document = recording.cut({"traceEvents": [meta, before, on_gpu, on_cpu, after], "deviceProperties": []})
    assert document == {"traceEvents": [meta, on_gpu, on_cpu, after], "deviceProperties": []}


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU Triton is the compiler here, and no stand-in in this process")
def test_a_stand_in_is_not_recorded() -> None:
    with pytest.raises(recording.UnsupportedWorkload, match="its time means nothing|whose time means nothing"):
        recording._record(lambda *_: None, "triton_jit/square", "square/33/float32", "cpu", 1, "unused.json")


@needs_gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_on_a_gpu_every_kernel_of_every_backend_has_its_launch(backend: str, tmp_path: Path) -> None:
    if backend in WITHOUT:
        pytest.skip(f"{backend} is left out by OPWISE_TEST_WITHOUT")
    path = tmp_path / "trace.json"
    result = invoke("timeline", f"{backend}/square", "square/1024x1024/float32", "--calls", "50", "--trace", str(path), "--json")
    assert result.exit_code == 0, result.output
    (device,) = json.loads(result.stdout)["devices"]
    found = traces.read(path)
    kernels = [a for a in found.activities if a.kind == "kernel"]
    assert len(kernels) >= 50
    assert [a.name for a in kernels if a.launch is None] == []
    assert device["span_us"] == pytest.approx(device["busy_us"] + device["idle_us"])
