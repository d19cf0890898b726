"""Triton's product through tensor descriptors, each kernel whatever the plan would take. Where there is no Hopper the interpreter runs
them, in tiles so small that a product of a few thousand elements has several each way; on a GPU that has descriptors, in a tile in use."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support import INPUT_KINDS, ON_GPU, Candidate, Tally, by_dtype, right_candidates, truth

from opwise.backends.protocol import Implementation
from opwise.ops.spec import Workload

PRODUCT = [c for c in right_candidates() if (c.backend, c.op, c.variant) == ("triton_jit", "matmul", "")]
# Of bfloat16 the interpreter multiplies the bits, as integers; and it does not know Gluon, in which TF32 and float32 are written.
CASES = [(c, dtype, persistent) for c, dtype in by_dtype(PRODUCT) if dtype == "float16" for persistent in (False, True)]
# Whole tiles, several each way and along K; ragged on all sides; more tiles down than a group holds, and K shorter than a step.
SHAPES = ((64, 64, 128), (70, 104, 136), (296, 8, 72)) if not ON_GPU else ((256, 192, 512), (1000, 136, 776), (1336, 8, 264))
HAS_DESCRIPTORS = not ON_GPU or torch.cuda.get_device_capability() >= (9, 0)


@pytest.mark.skipif(not HAS_DESCRIPTORS, reason="tensor descriptors are taken on sm_90 and later")
@pytest.mark.parametrize(("candidate", "dtype", "persistent"), CASES, ids=str)
def test_right_through_descriptors(candidate: Candidate, dtype: str, persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program a tile; and programs, one here, that go on to further tiles."""
    found = candidate.get()
    from opwise.backends.triton_jit import matmul
    from opwise.backends.triton_jit.matmul import tma

    used = next(c for c in matmul.HALF_CONFIGS if c.kernel == "tma" and c.persistent == persistent)
    config = used if ON_GPU else matmul.Config(32, 64, 32, 4, 3, 1, "tma", persistent=persistent)
    monkeypatch.setattr(matmul, "offered", lambda product, machine: {config.name: config})
    monkeypatch.setattr(tma, "processors", lambda device: 1)
    taken: list[bool] = []
    built = tma.build
    monkeypatch.setattr(tma, "build", lambda a, b, out, config: taken.append(config.persistent) or built(a, b, out, config))
    fresh = Implementation(found.backend, found.op, found.variant, found.source, found.device_type)  # what was built before serves no more
    tally = Tally(replace(candidate, found=fresh))
    for shape in SHAPES:
        for kind in INPUT_KINDS:
            workload = Workload("matmul", shape, dtype)
            tally.check(workload, truth(workload, kind, 61), note=kind)
    tally.close()
    assert set(taken) == {persistent}
