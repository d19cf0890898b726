"""`opwise verify`: planted faults are found and made small, whatever ends a search keeps what it found, a case tells all of itself."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from invoking import command
from support import DEVICE, our_candidates
from support import Candidate as Known
from typer.testing import CliRunner

from opwise import own
from opwise.backends import BACKENDS
from opwise.cli import app
from opwise.commands import verify
from opwise.ops import OPS
from opwise.ops.spec import OpSpec, Workload
from opwise.runner import Entry
from opwise.runner.seat import Seat
from opwise.runner.survey import Survey
from opwise.verifying import trial
from opwise.verifying.case import VALUES, Case, ranks
from opwise.verifying.search import Search
from opwise.verifying.trial import SUSPECT, Outcome, tried

SECONDS = 20.0  # far more than is needed: each of these searches ends with its last failure


def silent(name: str, phase: str) -> None:
    """Nobody's turn."""


def playing(wrong: Callable[[Case], bool], *, times: int = 10**9) -> Callable[[Case, Sequence[str]], list[Outcome]]:
    """A trial without kernels, wrong in the first implementation where the case is one of those, so many times."""
    left = [times]

    def played(case: Case, names: Sequence[str]) -> list[Outcome]:
        bad = 0 not in case.workload.shape and wrong(case) and left[0] > 0
        left[0] -= bad
        return [Outcome(name, "wrong" if bad and name == "bad/" + case.workload.op else "ok") for name in names]

    return played


# -- a case and its text -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", OPS.values(), ids=OPS)
def test_a_case_is_what_its_text_says(spec: OpSpec) -> None:
    count = len(spec.inputs) + 1
    for rank in ranks(spec):
        workload = Workload(spec.name, (33, 17, 5)[:rank], spec.dtypes[-1])
        for offsets in ((0,) * count, (1,) * count, tuple(range(count))):
            for values in VALUES:
                case = Case(workload, values, offsets, 7)
                assert Case.parse(str(case)) == case
        assert Case.parse(f"{workload}/seed=7") == Case(workload, "normal", (0,) * count, 7)
        assert Case.parse(f"{workload}/offset=1") == Case(workload, "normal", (1,) * count, 0)
    given, same = (Case.parse(f"{workload}/offset=3").inputs(DEVICE) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(given, same, strict=True))
    assert {x.data_ptr() % 256 for x in given} == {3 * workload.torch_dtype.itemsize}


NO_CASES = """softmax/3x33  softmx/3x3/float32  softmax/3x3/float8  softmax/3/float32  softmax/3x3/tfloat32  softmax/3x3/float32/seed=x
softmax/3x3/float32/values=soft  softmax/3x3/float32/offset=1,2,3  softmax/3x3/float32/color=red  softmax/3x3/float32/offset=-1"""


@pytest.mark.parametrize("text", NO_CASES.split())
def test_what_is_no_case_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="softm") as refused:
        Case.parse(text)
    assert repr(text) in str(refused.value)


# -- the search ----------------------------------------------------------------------------------------------------------------------------

Fault = Callable[[Workload, Case], bool]
PLANTED: dict[str, tuple[str, Fault, str]] = {
    "the last column of odd widths": ("softmax", lambda w, c: w.shape[1] > 8 and w.shape[1] % 2 == 1, "softmax/1x9/float32/seed=0"),
    "a tail of K": ("matmul", lambda w, c: w.shape[1] > 16 and w.shape[1] % 8 > 0, "matmul/1x17x1/float32/seed=0"),
    "an unaligned input in one dtype": (
        "gelu",
        lambda w, c: w.dtype == "bfloat16" and c.offsets[0] % 2 > 0 and math.prod(w.shape) > 64,
        "gelu/65/bfloat16/offset=1,0/seed=0",
    ),
    "hard values, several rows": ("mean", lambda w, c: c.values == "hard" and w.shape[0] > 1, "mean/2/float32/values=hard/seed=0"),
}


@pytest.mark.parametrize(("op", "wrong", "smallest"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_found_and_made_small(op: str, wrong: Fault, smallest: str) -> None:
    search = Search(playing(lambda case: wrong(case.workload, case)), {f"bad/{op}": "cpu"}, seed=1)
    search.run(SECONDS)
    (failure,) = search.failures.values()
    assert (str(failure.case), failure.again) == (smallest, True)


def test_one_that_fails_does_not_hide_the_others() -> None:
    """And each case goes to all that can afford it."""
    given: list[tuple[str, ...]] = []

    def played(case: Case, names: Sequence[str]) -> list[Outcome]:
        given.append(tuple(names))
        return [Outcome(name, "ok" if case.workload.shape[0] < 8 else "failed") for name in names]

    search = Search(played, {"bad/square": "cpu", "worse/square": "greenlets"})
    search.run(SECONDS)
    assert {name: failure.case.workload.shape for name, failure in search.failures.items()} == {"bad/square": (8,), "worse/square": (8,)}
    assert ("bad/square", "worse/square") in given


def test_what_fails_only_once_is_shown_as_that() -> None:
    search = Search(playing(lambda case: True, times=1), {"bad/square": "cpu"})
    search.run(0.5)
    (failure,) = search.failures.values()
    assert not failure.again


def test_ctrl_c_keeps_what_was_found() -> None:
    tries = iter(range(10**9))

    def played(case: Case, names: Sequence[str]) -> list[Outcome]:
        if next(tries) == 40:
            raise KeyboardInterrupt
        return [Outcome(name, "wrong" if name == "bad/square" and case.workload.shape[0] > 1 else "ok") for name in names]

    search = Search(played, {"bad/square": "cpu", "good/square": "cpu"})
    with pytest.raises(KeyboardInterrupt):
        search.run(SECONDS)
    assert search.failures["bad/square"].again


# -- a case carried out --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate", our_candidates(), ids=str)
def test_kernels_are_right_on_small_cases_of_all_kinds(candidate: Known) -> None:
    candidate.get()
    spec = OPS[candidate.op]
    for values in VALUES:
        workload = Workload(spec.name, (5, 17, 3)[: ranks(spec)[-1]], spec.dtypes[0])
        case = Case(workload, values, tuple(range(1, len(spec.inputs) + 2)), 3)
        (outcome,) = tried(silent, str(DEVICE), case, [candidate.name])
        assert outcome.status in (("ok", "left out") if values == "special" else ("ok",)), outcome
        assert bool(outcome.kernels) == (outcome.stand_in is not None), outcome


def test_all_against_one_suspects_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "OPS", {**OPS, "square": replace(OPS["square"], reference=lambda x: x * x + 1.0)})
    found = tried(silent, str(DEVICE), Case.parse("square/33/float32"), ["torch_eager/square", "torch_eager/square:pow"])
    assert [o.status for o in found] == ["wrong", "wrong"]
    assert all(SUSPECT in o.reason for o in found)


# -- the command ---------------------------------------------------------------------------------------------------------------------------

BAD = """
import os, torch, opwise

@opwise.kernel("softmax")
def drops_the_last_column_of_odd_widths(x, out):
    torch.softmax(x, dim=-1, out=out)
    if x.shape[1] % 2 and x.shape[1] > 8:
        out[:, -1] = 0

@opwise.kernel("square")
def dies(x, out):
    os.abort()
"""


invoke = command("verify", behind=("--device", "cpu"), COLUMNS="170")


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with faults, on a machine that was not looked at."""
    path = tmp_path / "bad.py"
    path.write_text(BAD)
    catalogue = {name: Entry(name, stand_in="cpu", variants={op: {"": ""} for op in OPS}) for name in BACKENDS}
    catalogue["bad"] = Entry("bad", stand_in="cpu", variants={"softmax": {"": ""}, "square": {"": ""}}, own=True)
    monkeypatch.setattr(verify, "surveyed", lambda name, files: Survey(name, {}, catalogue, {"bad": path} if files else {}))
    return str(path)


@pytest.mark.xdist_group("own")
def test_a_file_with_a_fault_is_caught_and_its_command_shows_it_again(bad: str) -> None:
    result = invoke("--with", bad, "--backend", "bad", "--op", "softmax", "--seconds", "30", "--seed", "7", "--json")
    assert result.exit_code == 1, result.output
    failure, whole = (json.loads(line) for line in result.stdout.splitlines())
    assert [failure[name] for name in ("implementation", "status", "repeats")] == ["bad/softmax", "wrong", True]
    assert failure["case"] == "softmax/1x9/float32/seed=0"
    assert (whole["kind"], whole["seed"], whole["checks"]["bad"]["ok"] > 0) == ("verify", 7, True)
    again = CliRunner().invoke(app, shlex.split(failure["again"])[1:])
    assert (again.exit_code, "wrong  bad/softmax  softmax/1x9/float32/seed=0: 1 of 9 elements" in again.output) == (1, True), again.output


@pytest.mark.xdist_group("own")
def test_a_kernel_that_takes_its_process_down_costs_its_own_outcome(bad: str) -> None:
    path = Path(bad)
    with contextlib.closing(Seat("cpu", setup=own.setup({"bad": path}))) as seat:
        found = verify.Trial(seat)(Case.parse("square/33/float32"), ["bad/square", "torch_eager/square"])
    assert [(o.implementation, o.status) for o in found] == [("bad/square", "failed"), ("torch_eager/square", "ok")]
    assert "SIGABRT" in found[0].reason


def test_what_cannot_be_verified_is_refused(bad: str) -> None:
    for arguments, said in (
        (("--with", bad, "--backend", "torch_eager"), ("bad.py", "--backend bad")),
        (("--with", bad, "--op", "mean"), ("bad.py", "bad/softmax, bad/square", "mean", "--op")),
        (("--backend", "tritn"), ("'tritn'", "triton_jit")),
        (("--op", "softmx"), ("'softmx'", "softmax")),
        (("--op", "softmax", "--dtype", "tfloat32"), ("softmax", "tfloat32")),
        (("--again", "softmax/3x3"), ("softmax/3x3", "seed=7")),
        (("--again", "softmax/3x3/float32", "--seed", "4"), ("--again", "--seed")),
    ):
        refused = invoke(*arguments)
        assert refused.exit_code == 2, refused.output
        assert all(words in refused.output for words in said), refused.output


def test_no_time_verifies_nothing(bad: str) -> None:
    result = invoke("--seconds", "0")
    assert (result.exit_code, "nothing was verified" in result.output) == (1, True)
