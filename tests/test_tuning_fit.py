"""What a tuned table says of sizes that were not measured: fitted by least squares, and taken only where it is proven to choose better."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tuned_tables import known_ways, row, rows_of

from opwise.backends.cuda_src.matmul.kernels import KERNELS
from opwise.backends.tuned_table import Elsewhere
from opwise.ops.spec import Workload
from opwise.tuning.fitting import elsewhere
from opwise.tuning.ways import H200, Term, Ways, least_squares

CUDA, MEAN = "cuda_src/matmul", "triton_jit/mean"


def test_least_squares_finds_what_the_times_were_made_of() -> None:
    terms = [Term(1.0, 4.0), Term(2.0, 1.0, 5.0), Term(3.0, 30.0), Term(7.0, 2.0)]
    made = [(t, 2.5 * t.each + 0.25 * t.depth + t.fixed) for t in terms]
    assert least_squares(made) == pytest.approx((2.5, 0.25))
    assert least_squares(made[:2]) is None, "two times fit any two numbers"
    assert least_squares([(Term(n, 2.0 * n), 5.0 * n) for n in (1.0, 2.0, 3.0)]) is None, "one ratio does not part the two"
    below = least_squares([(Term(1.0, 4.0), 3.0), (Term(1.0, 8.0), 8.0), (Term(1.0, 16.0), 17.0)])
    assert below is not None
    assert below[0] == 0.0, "a tile takes no negative time"
    assert below[1] > 0


@pytest.mark.parametrize("name", ["triton_jit/matmul", CUDA])
def test_a_gpu_that_obeys_the_model_otherwise_gets_numbers_that_choose_right(name: str) -> None:
    """Times made by the plan's own model with the shipped numbers changed: the fit finds better choices than those shipped."""
    of = known_ways(name)
    half = [w for w in of.workloads(quick=False) if of.kind(w.dtype) == "16-bit"]
    rows = rows_of(of, half, H200, made_by(of, half))
    shipped = [r.loss(r.shipped) for r in rows]
    assert max(shipped) > 1.1, "the shipped numbers are wrong for this GPU"
    rule = elsewhere(of, rows, H200)["16-bit"]
    assert rule.rule == "fitted"
    assert rule.loss is not None
    assert rule.shipped_loss is not None
    assert rule.loss < min(1.03, rule.shipped_loss)
    again = [of.choose(Workload.parse(r.workload), H200, rule.parameters) for r in rows]
    # CUDA C++'s model is not linear in its numbers (what memory and crowding add depends on the speed), a fit of two numbers is.
    assert max(r.loss(n) for r, n in zip(rows, again, strict=True) if n in r.times) < (1.08 if name == CUDA else 1.05)
    assert json.loads(json.dumps(rule.parameters)) == rule.parameters


def made_by(of: Ways, workloads: list[Workload]) -> Callable[[str, Workload], float]:
    """us of a configuration, linear in its terms, with numbers up to 2.5 times apart in another order than the shipped ones."""
    names = sorted({name for w in workloads for name in of.configurations(w, H200)})
    # Of what is no kernel, a tile takes its own.
    speeds = {kernel.name: kernel.speed * 1_900_000 for kernel in KERNELS["float16"]}

    def us(name: str, workload: Workload) -> float:
        term, i = of.term(name, workload, H200), names.index(name)
        assert term is not None
        each, depth = (64 / speeds[name], 1 / speeds[name]) if name in speeds else (2.0, 0.004)
        return term.each * each * (1 + i % 3) + term.depth * depth * (0.6 + (i * 7 % 5) / 4) + term.fixed

    return us


def test_a_rule_that_chooses_no_better_than_what_ships_is_not_taken() -> None:
    """Every other size has another winner: what is near tells nothing. With one winner everywhere, it does."""
    of = known_ways(MEAN)
    workloads = [Workload("mean", (1 << i,), "float32") for i in range(20, 28)]
    mixed = {str(w): ("256x2x4", "1024x8x2")[i % 2] for i, w in enumerate(workloads)}

    def rule(winner: Callable[[str], str]) -> Elsewhere:
        rows = [row(str(w), "512x4x4", {"512x4x4": 1.1, "256x2x4": 1.3, "1024x8x2": 1.3} | {winner(str(w)): 1.0}) for w in workloads]
        return elsewhere(of, rows, H200)["float32"]

    assert rule(lambda w: mixed[w]) == Elsewhere("shipped", 1.3, 1.1)
    assert rule(lambda w: "256x2x4") == Elsewhere("nearest", 1.0, 1.1)
    assert elsewhere(of, [row("mean/8/float32", "512x4x4", {"512x4x4": 1.0})], H200)["float32"].rule == "shipped"
