"""A forced backend computes or an error says why not; what one thread forces no other sees."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_kernels import EAGER, FakeKernels, computed_by, inputs_of, softmax_store
from recorded_runs import cell, store_of
from torch import Tensor

import opwise
from opwise.backends.protocol import BackendUnavailable, Implementation, Probe, UnsupportedWorkload
from opwise.choosing import dispatch, selection
from opwise.record import Record

pytestmark = pytest.mark.usefixtures("fresh")

SOURCE = Path(__file__).resolve().parents[1] / "src"


def test_a_forced_backend_that_is_missing_or_unknown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, device: torch.device) -> None:
        raise BackendUnavailable("there is no compiler", "install one")

    (x,) = inputs_of("softmax")
    with monkeypatch.context() as patched, opwise.use("torch_inline"):
        patched.setattr(dispatch, "implementation", missing)
        with pytest.raises(BackendUnavailable, match="install one"):
            opwise.softmax(x)
    assert torch.equal(opwise.softmax(x), EAGER["softmax"](x)), "outside of the block nothing is forced"
    with pytest.raises(ValueError, match="known are torch_eager"), opwise.use("tritn"):
        pass
    with opwise.use("torch_eager"):
        y = x.clone().requires_grad_()
        assert opwise.softmax(y).requires_grad


def test_a_forced_backend_that_cannot_compute_this_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, store_of(), cupy_raw=UnsupportedWorkload("too wide"))
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    (x,) = inputs_of("softmax")
    with opwise.use("cupy_raw"), pytest.raises(UnsupportedWorkload, match="too wide"):
        opwise.softmax(x)
    with opwise.use("triton_jit"):
        opwise.softmax(x)
        with opwise.use("numba_cuda"):
            opwise.softmax(x)
        opwise.softmax(x)
    assert fake.calls == ["cupy_raw", "triton_jit", "numba_cuda", "triton_jit"]


def test_a_stand_in_that_is_forced_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeKernels(monkeypatch, store_of())
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    monkeypatch.setattr(dispatch, "probe", lambda backend, device: Probe({}, stand_in="greenlets"))
    (x,) = inputs_of("softmax")
    with opwise.use("numba_cuda"), pytest.warns(selection.Fallback, match="numba_cuda is forced on cpu tensors: greenlets stands in"):
        opwise.softmax(x)


@pytest.mark.parametrize(("value", "says"), [("torch_inline", "BackendUnavailable"), ("tritn", "OPWISE_BACKEND names 'tritn'")])
def test_the_environment_variable_forces_one(value: str, says: str) -> None:
    code = (
        "import torch, opwise\ntry:\n    opwise.square(torch.ones(3)); print('fine')\n"
        "except Exception as e:\n    print(type(e).__name__, e)"
    )
    environment = os.environ | {"OPWISE_BACKEND": value, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "CXX": "no-such-c++"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, timeout=100)
    assert says in done.stdout


def test_what_one_thread_forces_no_other_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads at once, each with its own choice or none, on shapes that all of them meet for the first time."""
    fake = FakeKernels(monkeypatch, softmax_store(cupy_raw=5.0, torch_eager=9.0))
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    found: dict[int, set[str]] = {}
    barrier, local = threading.Barrier(8), threading.local()
    plain = fake.implementation

    def noting(name: str, device: torch.device) -> Implementation:
        call, (backend, op) = plain(name, device), name.split("/")

        def noted(*inputs: Tensor) -> Tensor:
            local.seen.add(backend)
            return call(*inputs)

        return computed_by(noted, op, backend)

    monkeypatch.setattr(selection, "implementation", noting)
    monkeypatch.setattr(dispatch, "implementation", noting)

    def work(n: int) -> None:
        local.seen = set()
        barrier.wait(20)
        for columns in range(33, 63):
            x = torch.full((7, columns), float(n))
            if n % 2:
                with opwise.use("triton_jit"):
                    opwise.softmax(x)
            else:
                opwise.softmax(x)
        found[n] = local.seen

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[n] for n in range(8)] == [{"triton_jit"} if n % 2 else {"cupy_raw"} for n in range(8)]
    assert fake.reads == 30, "each shape is looked up once, whoever meets it first"


def test_of_the_batch_invariant_one_computes_any_batch_or_an_error_says_that_none_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 7 rows cupy_raw is the fastest, of 64 triton_jit by more: that one has both, or the batch would decide whose bits a row has."""

    def row(backend: str, us: float, rows: int = 7, **told: object) -> Record:
        return cell(backend, us, shape=(rows, 33), dtype="float32", repeatable=True, bits="ab", **{"batch_invariant": True, **told})

    varies = row("torch_eager", 9e3, batch_invariant=False, differs="a row alone")
    store = store_of(varies, row("cupy_raw", 5.0), row("triton_jit", 7.0), row("cupy_raw", 20.0, 64), row("triton_jit", 10.0, 64))
    fake = FakeKernels(monkeypatch, store)
    monkeypatch.setattr(dispatch, "implementation", fake.implementation)
    (x,) = inputs_of("softmax")
    with opwise.use(invariant=True):
        for rows in (7, 64, 3):
            batch = x[:1].repeat(rows, 1)
            assert torch.equal(opwise.softmax(batch), EAGER["softmax"](batch))
        assert set(fake.calls) == {"triton_jit"}
        for unknown in (partial(opwise.gelu, x), partial(opwise.softmax, x.repeat(1, 2))):
            with pytest.raises(opwise.NothingMeasured, match="is on record|found out"):
                unknown()
        for misfit in (partial(opwise.matmul, x[0, 0], x), partial(opwise.matmul, x[None], x.t()), partial(opwise.softmax, [1.0])):
            with pytest.raises((TypeError, ValueError), match="reshape to 2-D|torch.as_tensor"):
                misfit()
    for wrong in ({"backend": "cupy_raw", "invariant": True}, {}):
        with pytest.raises(TypeError, match="one of the two"), opwise.use(**wrong):  # type: ignore[arg-type]
            pass
