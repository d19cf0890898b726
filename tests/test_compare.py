"""Faster, slower, same or undecided: the rule, what a pair is made of, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from invoking import command

from opwise import library
from opwise.comparing import compare, implementations, runs, verdict
from opwise.record import Interval, Record
from opwise.run_files import append


def cell(backend: str, median: float, low: float, high: float, **fields: object) -> Record:
    timed = Interval(median, low, high, 40, "events")
    return replace(Record(op="softmax", backend=backend, variant="", dtype="float16", shape=(583, 931), status="ok", kernel_cold_us=timed,
                          device="NVIDIA H200", commit="abc1234"), **fields)  # type: ignore[arg-type]  # fmt: skip


invoke = command("compare")


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.900, 0.890, 0.910), "faster"),
        ((1.100, 1.090, 1.110), "slower"),
        ((0.985, 0.980, 0.995), "faster"),
        ((1.000, 1.000, 1.000), "same"),
        ((0.996, 0.993, 0.999), "same"),  # surely faster, but by less than matters
        ((1.000, 0.992, 1.008), "same"),
        ((1.000, 0.950, 1.050), "undecided"),
        ((0.900, 0.700, 1.020), "undecided"),  # far apart, and not to be told from equal
        ((0.992, 0.970, 0.999), "undecided"),  # faster, and nobody knows whether by 1 %
    ],
)
def test_the_rule_and_its_mirror(interval: tuple[float, float, float], expected: str) -> None:
    ratio, low, high = interval
    mirrored = {"faster": "slower", "slower": "faster"}.get(expected, expected)
    assert verdict(ratio, low, high) == expected
    assert verdict(1 / ratio, 1 / high, 1 / low) == mirrored, "A against B is B against A the other way round"


def test_within_a_run_the_paired_ratio_is_taken_where_there_is_one() -> None:
    best = cell("triton_jit", 10.0, 9.0, 11.0, versus_best=(1.0, 1.0, 1.0))
    slow = cell("cupy_raw", 10.5, 9.5, 11.5, versus_best=(1.05, 1.04, 1.06))
    slower = cell("numba_cuda", 10.9, 9.9, 11.9, versus_best=(1.09, 1.08, 1.10))
    to_best = compare(slow, best, one_run=True)
    assert (to_best.verdict, to_best.ratio, to_best.low, to_best.high, to_best.paired) == ("slower", 1.05, 1.04, 1.06, True)
    from_best = compare(best, slow, one_run=True)
    assert (from_best.verdict, from_best.paired) == ("faster", True)
    assert (from_best.ratio, from_best.low, from_best.high) == pytest.approx((1 / 1.05, 1 / 1.06, 1 / 1.04))
    neither = compare(slower, slow, one_run=True)
    assert (neither.verdict, neither.paired) == ("undecided", False), "two medians' intervals are wider than a pair's"
    assert (neither.low, neither.high) == pytest.approx((9.9 / 11.5, 11.9 / 9.5))
    assert not compare(slow, best).paired, "another run's best was not measured beside it"
    assert not compare(slow, replace(best, launch_us=None), "launch", one_run=True).paired


def both(backend: str, full: float, capped: float | None, **fields: object) -> Record:
    around = {"kernel_capped_us": capped and Interval(capped, capped * 0.99, capped * 1.01, 40, "events"), "op": "matmul"}
    return cell(backend, full, full * 0.99, full * 1.01, shape=(64, 64, 64), **{**around, **fields})


def test_a_kernel_s_two_states_are_compared_one_by_one() -> None:
    a = both("triton_jit", 10.0, 12.0, versus_best=(1.0, 1.0, 1.0), capped_versus_best=(1.1, 1.09, 1.11))
    b = both("torch_eager", 11.5, 10.8, versus_best=(1.15, 1.14, 1.16), capped_versus_best=(1.0, 1.0, 1.0))
    found = list(implementations([a, b], "triton_jit", "torch_eager"))
    assert [(c.state, c.verdict, c.paired, c.a_us, c.b_us) for c in found] == [
        ("full", "faster", True, 10.0, 11.5), ("capped", "slower", True, 12.0, 10.8)]  # fmt: skip
    assert [c.ratio for c in found] == pytest.approx([1 / 1.15, 1.1])
    unchanged = both("torch_eager", 10.0, None, versus_best=(1.0, 1.0, 1.0))
    at_full, capped = implementations([a, unchanged], "triton_jit", "torch_eager")
    assert (at_full.ratio, capped.ratio, capped.paired) == (1.0, 1.2, False), "the best at full clock is not the capped ones' best"
    (same,) = runs([unchanged], [replace(unchanged, backend="torch_eager")])
    assert same.state == "both"
    assert [c.state for c in implementations([a, b], "triton_jit", "torch_eager", "call")] == [""]


def test_a_record_with_the_capped_time_alone_is_compared_in_that_state_alone() -> None:
    a, b = both("triton_jit", 10.0, 12.0), both("torch_eager", 11.5, 11.0)
    old = replace(b, kernel_cold_us=None)
    at_full, capped = implementations([a, old], "triton_jit", "torch_eager")
    assert (at_full.verdict, at_full.reason) == ("not compared", "B has no kernel time at full clock")
    assert (capped.verdict, capped.state) == ("slower", "capped")
    (only,) = implementations([replace(a, kernel_cold_us=None), old], "triton_jit", "torch_eager")
    assert only.state == "capped"
    job = (
        replace(a, kernel_cold_us=None, capped_versus_best=(1.0, 1.0, 1.0)),
        both("torch_eager", 13.0, None, versus_best=(1.1, 1.09, 1.11)),
    )
    assert [c.paired for c in implementations(job, "triton_jit", "torch_eager")] == [False, True], "one job of schema 1, one state"
    (wrong,) = implementations([a, replace(old, status="wrong", reason="nan")], "triton_jit", "torch_eager")
    assert (wrong.state, wrong.reason) == ("", "B is wrong: nan")


def test_what_has_no_time_is_not_compared_and_says_why() -> None:
    right = cell("triton_jit", 10.0, 9.9, 10.1)
    wrong = cell("cupy_raw", 5.0, 4.9, 5.1, status="wrong", reason="3 of 9 elements", kernel_cold_us=None)
    found = compare(wrong, right)
    assert (found.verdict, found.ratio) == ("not compared", None)
    assert "A is wrong: 3 of 9 elements" in found.reason
    assert "B has no launch time" in compare(wrong, right, "launch").reason


def test_two_runs_share_what_both_hold() -> None:
    a = [cell("triton_jit", 10.0, 9.95, 10.05), cell("cupy_raw", 10.0, 9.95, 10.05)]
    b = [cell("triton_jit", 20.0, 19.9, 20.1, device="NVIDIA H100"), cell("numba_cuda", 1.0, 1.0, 1.0)]
    (found,) = runs(a, b)
    assert (found.a, found.verdict, found.paired, found.b_device) == ("triton_jit/softmax", "faster", False, "NVIDIA H100")


# -- the command -------------------------------------------------------------------------------------------------------------


def test_the_command_has_a_row_a_state(tmp_path: Path) -> None:
    path = tmp_path / "h200" / "a.jsonl"
    append(path, [r.to_json() for r in (both("triton_jit", 10.0, 12.0), both("torch_eager", 11.5, 11.0))])
    asked = ("triton_jit/matmul", "torch_eager/matmul", "--run", str(path))
    rows = [line.split("│") for line in invoke(*asked).output.splitlines() if line.startswith("matmul/64")]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [("full", "10"), ("capped", "12")]
    assert [json.loads(line)["state"] for line in invoke(*asked, "--json").stdout.splitlines()] == ["full", "capped"]


def test_two_runs_of_different_devices_are_shown_as_such(tmp_path: Path) -> None:
    one, two = tmp_path / "h200" / "a.jsonl", tmp_path / "h100" / "b.jsonl"
    append(one, [cell("triton_jit", 10.0, 9.95, 10.05).to_json()])
    append(two, [cell("triton_jit", 20.0, 19.9, 20.1, device="NVIDIA H100").to_json()])
    output = invoke(str(one), str(two)).output
    assert "different devices (NVIDIA H200 and NVIDIA H100)" in output
    assert "unpaired" in output
    assert "A is: 1 faster" in output


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (("triton_jit/softmax", "torch_eager/gelu"), ["of one op"]),
        (("triton_jit/softmax", "triton_jit/softmax"), ["different implementations"]),
        (("triton_jit/softmax:nothing", "torch_eager/softmax"), ["triton_jit/softmax:nothing", "triton_jit/softmax"]),
        (("triton_jit/softmax", "no_such"), ["no_such", "it holds"]),
        (("no-such-run", "core"), ["no-such-run"]),
        (("core", "core"), ["both the run"]),
        (("triton_jit", "torch_eager", "--for", "graph"), ["graph", "kernel", "launch"]),
        (("triton_jit",), ["Missing argument"]),
    ],
)
def test_bad_usage_exits_2(arguments: tuple[str, ...], needles: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = [cell(backend, 10.0, 9.95, 10.05).to_json() for backend in ("triton_jit", "torch_eager")]
    append(tmp_path / "h200" / "20260101T000000Z-core-abc1234.jsonl", held)
    monkeypatch.setattr(library, "shipped", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert all(needle in result.output for needle in needles), result.output
