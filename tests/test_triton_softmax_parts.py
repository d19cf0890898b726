"""Long rows that several programs share: the arithmetic in Triton's interpreter, the scratch, and when it is safe."""

from types import SimpleNamespace

import pytest
import torch

from opwise.backends import triton_jit
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OPS
from opwise.ops.spec import Workload


@pytest.fixture(scope="module")
def shared():
    try:
        triton_jit.probe(torch.device("cpu"))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    from opwise.backends.triton_jit import softmax_parts

    return softmax_parts


def launched(shared, x, plan):
    """Programs come one after the other here, and who waits waits for ever: so nobody waits, and a second launch reads what the first told.

    Each launch must leave all counters 0.
    """
    if not shared.INTERPRETING:
        pytest.skip("programs are run one after the other in the interpreter alone")
    rows, columns = x.shape
    memory = torch.zeros(plan.scratch_bytes // 4)
    counters, pairs = memory[: plan.counter_bytes // 4].view(torch.int32), memory[plan.counter_bytes // 4 :]
    for _ in range(2):
        out = torch.full_like(x, float("nan"))
        bind = shared.built(shared.part_of_row_kernel, (rows * plan.parts, 1, 1), **plan.fixed)
        bind(x, out, counters, pairs, rows, columns, plan.part)()
        assert not counters.any(), "every counter is 0 after a launch"
    return out


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 256), ("float32", 208), ("float16", 256), ("bfloat16", 208)])
def test_parts_of_a_row_are_its_softmax(shared, monkeypatch, dtype, columns):
    """Whole parts and a short last one; a part of -inf alone, and one whose maximum is far below the row's."""
    monkeypatch.setattr(shared, "wait_until", lambda counter, count: None)
    torch.manual_seed(0)
    x = torch.randn(3, columns)
    x[1, :64] = float("-inf")
    x[2, 64:128] -= 60.0
    x = x.to(getattr(torch, dtype))
    plan = shared.Plan(columns, 64, 1)
    assert plan.parts == 4
    out = launched(shared, x, plan)
    wide = x.double()
    reference = OPS["softmax"].reference(wide)
    bound = OPS["softmax"].error_bound(Workload("softmax", (3, columns), dtype), reference, wide)
    assert ((out.double() - reference).abs() <= bound).all()


def test_a_nan_and_a_row_of_minus_infinity_give_rows_of_nan(shared, monkeypatch):
    monkeypatch.setattr(shared, "wait_until", lambda counter, count: None)
    x = torch.zeros(3, 128)
    x[0, 100] = float("nan")
    x[1] = float("-inf")
    out = launched(shared, x, shared.Plan(128, 32, 1))
    assert out[:2].isnan().all()
    assert (out[2] == 1 / 128).all()


@pytest.mark.parametrize("size", [8192, 16384])
@pytest.mark.parametrize("columns", [32784, 65536, 100000, 131072, 262144, 1048576])
def test_a_plan_covers_the_row_and_fits_its_scratch(shared, columns, size):
    plan = shared.Plan(columns, size)
    assert plan.part <= size
    assert plan.part % 16 == 0
    assert (plan.parts - 1) * plan.part < columns <= plan.parts * plan.part
    assert not plan.fixed["EVEN"] or plan.part == size
    assert plan.counter_bytes % 16 == 0
    assert plan.counter_bytes // 4 <= plan.fixed["RESET"]
    assert plan.scratch_bytes <= 64 * 1024


def test_rows_are_shared_only_where_no_launch_can_keep_another_from_running(shared):
    h200 = SimpleNamespace(max_threads_per_multi_processor=2048, multi_processor_count=132)
    compiled = SimpleNamespace(run=None, n_regs=48, metadata=SimpleNamespace(shared=64))
    assert shared.safe(shared.Plan(262144, 8192), compiled, h200), "16 x 31 wait, 5 x 132 run"
    assert not shared.safe(shared.Plan(1048576, 8192), compiled, h200), "16 x 127 could wait"
    compiled.n_regs = 255
    assert not shared.safe(shared.Plan(131072, 8192), compiled, h200), "16 x 15 could wait, 132 run"
    assert shared.safe(shared.Plan(65536, 8192), compiled, h200)


def test_what_cannot_be_shared_is_left_to_the_other_kernels(shared):
    x = torch.zeros(4, 65536)
    assert shared.build(x, x) is None, "no GPU"
