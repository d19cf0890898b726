"""Filters name what a user means, and say so when they name nothing."""

from __future__ import annotations

import pytest

from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.runner import SETS, Entry, UnknownName, plan

CATALOGUE = {
    name: Entry(name, versions={"x": "1"}, variants={op: {"": "", "textbook": "as in the lecture"} for op in OPS}) for name in BACKENDS
}


def planned(*filters: str, set_name: str = "smoke", variants: bool = False) -> set[tuple[str, str]]:
    jobs = plan(CATALOGUE, filters, set_name, "cpu", variants=variants)
    return {(name, str(job.workload)) for job in jobs for name in job.implementations}


@pytest.mark.parametrize("set_name", SETS)
def test_a_set_holds_all_pairs_of_ops_and_backends(set_name: str) -> None:
    pairs = {name for name, _ in planned(set_name=set_name)}
    assert pairs == {f"{backend}/{op}" for backend in BACKENDS for op in OPS}


@pytest.mark.parametrize("brief", [True, False])
def test_a_brief_run_has_brief_jobs_alone(brief: bool) -> None:
    jobs = plan(CATALOGUE, [], "grid", "cuda:0", brief=brief)
    assert {job.brief for job in jobs} == {brief}
    assert len(jobs) == sum(len(spec.workloads["grid"]) for spec in OPS.values())


def test_variants_are_extra() -> None:
    assert {n for n, _ in planned(variants=True)} == {n + v for n, _ in planned() for v in ("", ":textbook")}


def test_plain_is_timed_on_the_first_workload_of_each_op() -> None:
    catalogue = {"cupy_raw": Entry("cupy_raw", versions={"x": "1"}, variants={op: {"": "", "plain": "", "mma": ""} for op in OPS})}
    jobs = plan(catalogue, [], "core", "cuda:0")
    firsts = {str(OPS[op].workloads["core"][0]) for op in OPS}
    assert {str(job.workload) for job in jobs if f"cupy_raw/{job.workload.op}:plain" in job.implementations} == firsts
    assert not any(name.endswith(":mma") for job in jobs for name in job.implementations)
    for more in ({"timed": False}, {"brief": True}):
        assert not any(":plain" in name for job in plan(catalogue, [], "core", "cuda:0", **more) for name in job.implementations)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["softmax"], {f"{b}/softmax" for b in BACKENDS}),
        (["triton_jit"], {f"triton_jit/{op}" for op in OPS}),
        (["triton_jit/*"], {f"triton_jit/{op}" for op in OPS}),
        (["softmax", "gelu", "triton_jit"], {"triton_jit/softmax", "triton_jit/gelu"}),
        (["torch_eager/square:textbook"], {"torch_eager/square:textbook"}),
        (["square", "triton_jit", "numba_cuda"], {"triton_jit/square", "numba_cuda/square"}),
    ],
)
def test_filters(filters: list[str], names: set[str]) -> None:
    assert {n for n, _ in planned(*filters)} == names


def test_workload_filters_narrow_and_spelled_out_ones_widen() -> None:
    assert {w.split("/")[2] for _, w in planned("float16")} == {"float16"}
    assert {w for _, w in planned("softmax/7x130/*")} == {f"softmax/7x130/{d}" for d in OPS["softmax"].dtypes}
    assert {w for _, w in planned("softmax/123x457/float16")} == {"softmax/123x457/float16"}


@pytest.mark.parametrize(("wrong", "nearest"), [("sofmax", "softmax"), ("triton", "triton_jit"), ("triton_jit/meen", "triton_jit/mean")])
def test_an_unknown_name_lists_the_known_and_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=nearest) as caught:
        planned(wrong)
    assert all(name in str(caught.value) for name in [*OPS, *BACKENDS])


def test_an_unavailable_backend_is_seen_missing() -> None:
    catalogue = CATALOGUE | {"triton_jit": Entry("triton_jit", reason="triton is not installed", remedy="pip install triton")}
    names = {n for job in plan(catalogue, ["square"], "smoke", "cpu") for n in job.implementations}
    assert "triton_jit/square" in names


def test_a_variant_of_a_backend_that_cannot_be_imported_is_told_so() -> None:
    """A mistake in the file with the new variant is found where the variant is asked for."""
    broken = {**CATALOGUE, "torch_eager": Entry("torch_eager", reason="NameError: name 'expression' is not defined")}
    with pytest.raises(UnknownName, match="No variant of torch_eager is known here: NameError: name 'expression' is not defined"):
        plan(broken, ["square:einsum"], "smoke", "cpu")
    with pytest.raises(UnknownName) as told:
        plan(broken, ["nonsense"], "smoke", "cpu")
    assert "NameError" not in str(told.value)
