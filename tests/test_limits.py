"""How roofs become limits, with roofs given; that they can be measured at all needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from simulated_queue import SimulatedQueue

from opwise.measure import limits
from opwise.measure.gpu import Launch
from opwise.measure.limits import LOADED_WORDS, Roofs
from opwise.measure.timing import Clock

GB_PER_S = {"copy": 4000.0, "read": 5000.0, "write": 2500.0}


class GivenRoofs(Roofs):
    """4000 GB/s copying, 5000 reading, 2500 writing, each after 2 us; 3 us an empty launch in a graph, 4 between events; 50 TFLOP/s.
    `asked` is what was measured."""

    def __init__(self) -> None:
        super().__init__(Clock(torch.device("cpu"), None, SimulatedQueue()))  # type: ignore[arg-type]
        self.asked: list[tuple[str, int]] = []
        self._launch = {"events": 4.0, "graph": 3.0}

    def _measured_move(self, kind: str, total: int) -> float:
        self.asked.append((kind, total))
        return 2.0 + total / GB_PER_S[kind] / 1e3

    def _measured_peak(self, unit: str) -> float:
        self.asked.append((unit, 0))
        return 50e12


def test_a_copy_is_held_against_the_copy_of_as_many_bytes() -> None:
    roofs = GivenRoofs()
    assert roofs.memory_us(10**9, 10**9) == pytest.approx(2.0 + 500.0)
    assert roofs.asked == [("copy", 2 * 10**9)]


def test_reading_and_writing_alone_have_roofs_of_their_own() -> None:
    roofs = GivenRoofs()
    assert roofs.memory_us(10**9, 4) == pytest.approx(2.0 + 200.0, rel=1e-3)  # mean: one element written
    assert roofs.memory_us(0, 10**9) == pytest.approx(2.0 + 400.0)
    assert [kind for kind, _ in roofs.asked] == ["read", "write"]


def test_the_rest_of_a_copy_goes_at_the_speed_of_its_kind() -> None:
    roofs = GivenRoofs()
    expected = 0.5 * (2.0 + 4e9 / 4000e3) + 0.5 * (2.0 + 4e9 / 5000e3)  # 1 GB of each as a copy, 2 GB more to read
    assert roofs.memory_us(3 * 10**9, 10**9) == pytest.approx(expected)


def test_no_limit_is_under_an_empty_launch_of_the_same_method() -> None:
    roofs = GivenRoofs()
    assert roofs.limit_us(8, 8, 4, "fma") == 3.0
    assert roofs.memory_us(0, 0) == 3.0
    assert roofs.launch_us(1 << 30) == 4.0


def test_a_product_is_limited_by_its_flops_and_needs_no_memory_roof() -> None:
    roofs = GivenRoofs()
    n = 8192
    assert roofs.limit_us(8 * n * n, 4 * n * n, 2 * n**3, "fma") == pytest.approx(2 * n**3 / 50e6)
    assert roofs.asked == [("fma", 0), ("copy", 1 << 30)]


@pytest.mark.parametrize(("flops", "of"), [(4, 1 << 26), (9, 1 << 18), (10, 1 << 26)], ids=["few a byte", "few in all", "many"])
def test_a_peak_that_cannot_be_the_limit_is_not_measured(flops: int, of: int) -> None:
    """Elementwise ops would cost every GPU of a run a second for the peak of float32; what they are held against is the same."""
    roofs = GivenRoofs()
    roofs._launch = {"events": 3.0, "graph": 3.0}
    found = roofs.limit_us(of // 2, of // 2, flops * of, "fma")
    assert (("fma", 0) in roofs.asked) == (flops * of > 1e9 / 3)
    assert found == pytest.approx(max(roofs.memory_us(of // 2, of // 2), flops * of / 50e12 * 1e6))


def test_every_roof_is_measured_once_and_reported_with_its_unit() -> None:
    roofs = GivenRoofs()
    for _ in range(2):
        roofs.memory_us(10**9, 10**9)
        roofs.peak("fma")
    found = roofs.as_dict()
    assert roofs.asked == [("copy", 2 * 10**9), ("fma", 0)]
    assert found["copy_2000000000_bytes_gb_per_s"] == pytest.approx(2e9 / 502.0 / 1e3)
    assert found["peak_fma_tflop_per_s"] == pytest.approx(50.0)
    assert found["empty_launch_events_us"] == 4.0


def test_beyond_4_gib_bandwidth_is_taken_from_there() -> None:
    roofs = GivenRoofs()
    assert roofs.memory_us(8 << 30, 8 << 30) == pytest.approx(4 * (2.0 + (4 << 30) / 4e6))


def test_an_unknown_unit_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"unknown unit 'int8': known are fma, tensor_float16"):
        GivenRoofs().peak("int8")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: it has no roofs")
def test_roofs_of_this_gpu_are_sane() -> None:
    roofs = Roofs(Clock(torch.device("cuda", 0)))
    assert 0.5 < roofs.launch_us() < 20.0
    copy, read, write = roofs.memory_us(1 << 28, 1 << 28), roofs.memory_us(1 << 29, 0), roofs.memory_us(0, 1 << 29)
    assert max(copy, read, write) < 1.6 * min(copy, read, write)
    assert roofs.peak("tensor_float16") > 1.5 * roofs.peak("fma")
    assert roofs.limit_us(4096, 4096, 1024, "fma") >= roofs.launch_us()


def test_whatever_roofs_ask_of_triton_was_built_on_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel in each shape, on a grid of one block, of a multiple of 16 and of neither."""
    ran: list[tuple[str, int]] = []

    class Ours:
        @staticmethod
        def empty(device: torch.device) -> Launch:
            return lambda: ran.append(("empty", 0))

        @staticmethod
        def fma(device: torch.device) -> tuple[Launch, float]:
            return lambda: ran.append(("fma", 0)), 1.0

        @staticmethod
        def copies(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[str, Launch]]:
            yield "triton", lambda: ran.append(("copy", x.numel()))

        @staticmethod
        def reads(x: torch.Tensor) -> Iterator[tuple[str, Launch]]:
            yield "triton", lambda: ran.append(("read", x.numel()))

        @staticmethod
        def writes(y: torch.Tensor) -> Iterator[tuple[str, Launch]]:
            yield "triton", lambda: ran.append(("write", y.numel()))

    monkeypatch.setattr(limits, "_our_kernels", lambda: Ours)
    limits.load_kernels(torch.device("cpu"))
    assert set(ran) == {("empty", 0), ("fma", 0), *((kind, words) for kind in ("copy", "read", "write") for words in LOADED_WORDS)}
    assert all(words * 4 % limits.GRANULE == 0 for words in LOADED_WORDS), "as every number of words that a roof is taken at"
    for block in (512, 1024, 2048, 4096):
        grids = [-(-words // block) for words in LOADED_WORDS]
        assert [(grid == 1, grid % 16 == 0) for grid in grids] == [(True, False), (False, True), (False, False)]
    monkeypatch.setattr(limits, "_our_kernels", lambda: None)
    limits.load_kernels(torch.device("cpu"))
