"""Launches that were bound before others: what a kernel was allowed for the first it must keep, whatever a later one asks for."""

from __future__ import annotations

import pytest
import torch
from support import Candidate, bound_launch, needs_gpu, our_candidates, truth, workloads_for

from opwise.measure.validate import judge
from opwise.ops import OPS

pytestmark = needs_gpu

DTYPE = "float16"  # of whose products and rows a kernel has as much shared memory as each of them wants


@pytest.mark.parametrize("candidate", our_candidates(), ids=str)
def test_what_is_bound_lives_beside_all_that_is_bound_later(candidate: Candidate) -> None:
    spec, bound, failures = OPS[candidate.op], [], []
    for workload in workloads_for(candidate, DTYPE):
        inputs = truth(workload, "normal", 31).inputs
        out = spec.empty_output(*inputs)
        bound.append((workload, out, bound_launch(candidate, inputs, out)))
    for workload, out, launch in bound:
        out.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        known = truth(workload, "normal", 31)
        verdict = judge(out, known.reference, known.bound)
        if not verdict.ok:
            failures.append(f"{workload}: {verdict.reason}")
    assert not failures
