"""On a GPU: opwise's own check, easy and hard inputs, against the float64 reference: of every variant on small tensors, else on large."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from conftest import needs_gpu
from opwise.backends import BACKENDS
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OURS as OPS

opwise_helion = pytest.importorskip("opwise_helion", reason="the package is not installed")

pytestmark = needs_gpu


@pytest.fixture(scope="module", autouse=True)
def _runs_here() -> None:
    if "helion" not in BACKENDS:
        pytest.skip("the package is not installed: its entry point is what opwise finds")
    try:
        opwise_helion.probe(torch.device("cuda"))
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("asked", [(), ("--variants", "--set", "smoke")], ids=["core", "variants"])
@pytest.mark.parametrize("op", OPS)
def test_opwise_finds_it_right(op: str, asked: tuple[str, ...]) -> None:
    """Each size of each variant is compiled: all of them on large tensors are for `opwise run --variants`, which checks what it times."""
    command = [sys.executable, "-m", "opwise", "check", op, "--backend", "helion", *asked, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {record["dtype"] for record in found} == set(OPS[op].dtypes), done.stderr
    assert [(r["variant"], r["shape"], r["dtype"], r["reason"]) for r in found if r["status"] != "ok"] == []
