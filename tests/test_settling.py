"""Which rankings three processes settle, and what says so: the rule, the table, the comparison of two runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from invoking import command
from recorded_runs import cell, stored

from opwise.choosing.spread import Across
from opwise.record import Record
from opwise.report.html_tables import described
from opwise.settling import FASTER, SAME, SLOWER, agreement, outcome, settled, settled_of


def ratio(value: float) -> tuple[float, float, float]:
    return value, value * 0.999, value * 1.001


def in_processes(backend: str, *us: float, of: tuple[float, ...] = (), **changed: object) -> Record:
    """A cell of as many processes, each ratio to the least of `of`, which is 10 us where it is not given."""
    best = of or (10.0,) * len(us)
    versus = tuple((1.0, 1.0, 1.0) if t == b else ratio(t / b) for t, b in zip(us, best, strict=True))
    whole = (1.0, 1.0, 1.0) if us == best else ratio(sorted(us)[len(us) // 2] / 10)
    return cell(backend, sorted(us)[len(us) // 2], seed=7, versus_best=whole, processes=len(us), us_by_process={"full": us},
                versus_by_process={"full": versus}, **changed)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.05, 1.06, 1.05), SLOWER),
        ((1.002, 0.998, 1.001), SAME),
        ((1.05, 1.06), ""),  # two processes
        ((1.05, 1.06, 0.97), ""),  # a flip
        ((1.02, 1.06, 1.03), ""),  # so far apart that a fourth may tie
        ((1.005, 1.012, 1.008), ""),  # on both sides of 1 %
        ((1.012, 1.0121, 1.0122), SLOWER),
    ],
)
def test_the_rule_and_its_mirror(values: tuple[float, ...], expected: str) -> None:
    mirrored = {SLOWER: FASTER}.get(expected, expected)
    assert outcome([ratio(v) for v in values]) == expected
    assert outcome([ratio(1 / v) for v in values]) == mirrored


def test_an_interval_that_holds_1_leaves_it_open() -> None:
    assert outcome([(1.05, 0.99, 1.11), ratio(1.05), ratio(1.05)]) == ""


def test_two_records_of_one_process_settle_nothing() -> None:
    best, slow = cell("triton_jit", 10.0, versus_best=(1.0, 1.0, 1.0)), cell("cupy_raw", 12.0, versus_best=ratio(1.2))
    assert not settled(slow, best, ("full",))
    assert settled_of([best, slow]) == set()


BEST = in_processes("triton_jit", 10.0, 10.0, 10.0)
SLOW = in_processes("cupy_raw", 12.0, 12.1, 12.0)
OPEN = in_processes("numba_cuda", 10.0, 10.6, 10.3)


def test_the_fastest_is_settled_where_all_others_are() -> None:
    assert settled_of([BEST, SLOW]) == {"triton_jit/softmax", "cupy_raw/softmax"}
    assert settled_of([BEST, SLOW, OPEN]) == {"cupy_raw/softmax"}
    assert settled_of([BEST]) == set(), "beside nobody"


def test_both_states_are_to_be_settled() -> None:
    capped = {"us_by_process": {"full": (10.0,) * 3, "capped": (11.0,) * 3}}
    best = replace(BEST, kernel_capped_us=BEST.kernel_cold_us, capped_versus_best=(1.0, 1.0, 1.0), **capped,
                   versus_by_process={s: ((1.0, 1.0, 1.0),) * 3 for s in ("full", "capped")})  # type: ignore[arg-type]  # fmt: skip
    slow = replace(SLOW, kernel_capped_us=SLOW.kernel_cold_us, capped_versus_best=ratio(1.2), **capped,
                   versus_by_process={"full": SLOW.versus_by_process["full"], "capped": (ratio(1.2), ratio(0.98), ratio(1.2))})  # type: ignore[arg-type]  # fmt: skip
    assert settled(slow, best, ("full",)) == SLOWER
    assert settled_of([best, slow]) == set()


def test_the_table_says_what_its_figures_speak_of(tmp_path: Path) -> None:
    output = command("show")(str(stored(tmp_path, BEST, SLOW, OPEN))).output
    rows = {line.split()[0]: line for line in output.splitlines() if "│" in line and "/softmax" in line}
    assert "1.20x, settled" in rows["cupy_raw/softmax"]
    assert "settled" not in rows["triton_jit/softmax"] + rows["numba_cuda/softmax"]
    assert "± is the half-width of what the 95 % intervals of 3 processes reach over" in output
    alone = command("show")(str(stored(tmp_path, cell("triton_jit", 10.0), name="alone"))).output
    assert "± is the half-width of the 95 % interval within this run: one process" in alone
    page = described([BEST, SLOW, OPEN], Across())
    assert {row["implementation"]: row["rank"] for row in page["cells"]}["cupy_raw"] == "1.20x, settled"
    assert "3 processes" in page["speaks_of"]


# -- two runs ----------------------------------------------------------------------------------------------------------------------


def test_two_runs_of_the_same_kernels_settle_the_same() -> None:
    again = in_processes("numba_cuda", 10.4, 10.0, 10.0)
    found = agreement([BEST, SLOW, OPEN], [BEST, SLOW, again])
    assert (found.pairs, found.settled, found.flips) == (3, 2, ())
    assert "2 of 3 are settled in both runs, and none of these flips; of the other 1, " in str(found)


def test_a_settled_ranking_that_flips_is_named(tmp_path: Path) -> None:
    turned = [in_processes("triton_jit", 12.0, 12.0, 12.0), in_processes("cupy_raw", 10.0, 10.0, 10.0)]
    paths = [stored(tmp_path, *cells, name=name) for name, cells in (("a", (BEST, SLOW)), ("b", turned))]
    output = " ".join(command("compare")(*map(str, paths)).output.split())
    assert "1 of 1 are settled in both runs, and 1 of these flip" in output
    assert "softmax/64x64/float16, at full clock: triton_jit/softmax beside cupy_raw/softmax is faster in A, slower in B" in output
    assert "rankings of two" not in command("compare")(*map(str, paths), "--for", "call").output


def test_runs_of_one_process_settle_nothing_and_say_what_does() -> None:
    a = [cell("triton_jit", 10.0, seed=1, versus_best=(1.0, 1.0, 1.0)), cell("cupy_raw", 12.0, seed=1, versus_best=ratio(1.2))]
    b = [replace(a[0], versus_best=ratio(1.1)), replace(a[1], versus_best=(1.0, 1.0, 1.0))]
    assert str(agreement(a, b)) == "rankings of two: none of 1 is settled in both runs (--processes 3); 1 come out otherwise in B"
