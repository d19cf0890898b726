"""The stand-in for CUDA C++ against known answers: what it computes, what it reports, what it refuses."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import or_skip
from torch import Tensor

from opwise.backends.cuda_on_cpu import build, rewrite
from opwise.backends.cuda_on_cpu.build import Kernels
from opwise.backends.cuda_src.recipes import RECIPES
from opwise.backends.protocol import BackendUnavailable

pytestmark = pytest.mark.xdist_group("cuda_on_cpu")
TESTS = Path(__file__).parent
Run = Callable[..., None]


def compiler_or_skip() -> None:
    with or_skip():
        build.compiler()


@pytest.fixture(scope="module")
def run() -> Run:
    """run(kernel, grid, block, *tensors or integers, shared=bytes)."""
    compiler_or_skip()
    library = build.library("opwise_small_kernels", {"small": (TESTS / "small_kernels.cu").read_text()}, folders=(TESTS,))
    kernels = Kernels(library)

    def launched(name: str, grid: int | tuple[int, ...], block: int | tuple[int, ...], *given: Tensor | int, shared: int = 0) -> None:
        sizes = [(x,) if isinstance(x, int) else x for x in (grid, block)]
        kernels.launch(name, *sizes, tuple(x.data_ptr() if isinstance(x, Tensor) else x for x in given), shared)

    return launched


# -- what it computes --------------------------------------------------------------------------------------------------------


def test_every_thread_knows_where_it_is(run: Run) -> None:
    out = torch.zeros(24, 60, dtype=torch.int32)
    run("indices", (2, 3, 4), (3, 4, 5), out)
    assert torch.equal(out, torch.arange(60)[None] + 1000 * torch.arange(24)[:, None])


def test_a_warp_has_32_lanes_that_exchange_vote_and_reduce(run: Run) -> None:
    out = torch.zeros(13, 64, dtype=torch.int32)
    run("warp_moves", 1, 64, out)
    lane = torch.arange(64) % 32
    warp = 100 + torch.arange(64) - lane
    ballot = sum(1 << i for i in range(0, 32, 3))
    expected = [
        warp + (lane ^ 5),
        warp + torch.where(lane < 29, lane + 3, lane),
        warp + torch.where(lane >= 3, lane - 3, lane),
        warp + 7,
        warp + lane // 16 * 16 + 1,
        warp + torch.where((lane ^ 9) // 8 > lane // 8, lane, lane ^ 9),
        warp + torch.where(lane % 4 < 2, lane + 2, lane),
        torch.full((64,), ballot - (1 << 32) if ballot >> 31 else ballot),
        torch.full((64,), 1 + 4),
        torch.full((64,), 496),
        torch.zeros(64),
        torch.where(lane < 16, 16, sum(range(16, 32))),
        torch.ones(64),
    ]
    for row, (found, wanted) in enumerate(zip(out, expected, strict=True)):
        assert torch.equal(found, wanted.int()), f"row {row}"


def test_lanes_that_ended_are_not_waited_for(run: Run) -> None:
    out = torch.zeros(32, dtype=torch.int32)
    run("warp_without_some", 1, 32, out)
    assert out.tolist() == [0 if i % 4 == 3 else 0x77777777 for i in range(32)]


def test_shared_memory_and_votes_of_a_block(run: Run) -> None:
    x, count = torch.randn(5, 100), torch.zeros(5, dtype=torch.int32)
    out = torch.zeros_like(x)
    run("reverse", 5, 100, x, out, count, shared=400)
    assert torch.equal(out, x.flip(1))
    assert torch.equal(count, 12 * (x > 0).sum(1).int())


def test_atomics_of_many_blocks_and_within_one(run: Run) -> None:
    wrapping, total, cas = (torch.zeros(1, dtype=torch.int32) for _ in range(3))
    added, least = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    run("count_up", 50, 96, wrapping, total, added, least, cas)
    assert (wrapping.item(), total.item(), added.item(), least.item(), cas.item()) == (4800 % 7, 4800, 2400.0, -4799, 9600)
    out = torch.zeros(3, dtype=torch.int32)
    run("count_shared", 3, 96, out)
    assert out.tolist() == [sum(range(96))] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_all_65536_patterns_round_to_nearest_even(run: Run, dtype: torch.dtype) -> None:
    """Every 16-bit number, the middle between it and the next, and both neighbours of that middle in float32; torch is the judge."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    exact = every.float()
    beyond = torch.where(torch.isinf(exact), 2.0 * torch.finfo(dtype).max, exact.double())  # the middle to infinity counts as one too
    following = (every.view(torch.int16) + 1).view(dtype).float().double()
    middle = (
        (beyond + torch.where(torch.isinf(following), following.sign() * 2.0 ** (16 if dtype == torch.float16 else 128), following)) / 2
    ).float()
    x = torch.cat([exact, middle, torch.nextafter(middle, torch.tensor(torch.inf)), torch.nextafter(middle, torch.tensor(-torch.inf))])
    narrow, wide = torch.zeros(len(x), dtype=dtype), torch.zeros(len(x))
    run(f"convert_{str(dtype).removeprefix('torch.')}", len(x) // 256, 256, x, narrow, wide, len(x))
    numbers = ~torch.isnan(x)
    assert numbers.sum() > 3 * 65536
    assert torch.equal(narrow[numbers].view(torch.int16), x.to(dtype)[numbers].view(torch.int16))
    assert torch.isnan(narrow[~numbers]).all()
    assert torch.equal(wide[numbers], narrow[numbers].float())


def test_pairs_and_tf32_round_as_ptx_says(run: Run) -> None:
    x, pairs = torch.randn(64), torch.zeros(64, dtype=torch.float16)
    run("pack_float16", 1, 32, x, pairs)
    assert torch.equal(pairs, x.half()), "the first of a pair lies low"
    tie = torch.tensor([0x3F801000, 0x3F800FFF, 0x3F803000], dtype=torch.int32).view(torch.float32)
    out = torch.zeros(3, dtype=torch.int32)
    run("round_tf32", 1, 3, tie, out)
    assert out.tolist() == [0x3F802000, 0x3F800000, 0x3F804000], "ties go away from zero"


def test_copies_land_group_by_group(run: Run) -> None:
    x, out = torch.randn(64), torch.zeros(64)
    run("copy_in_groups", 1, 32, x, out)
    assert torch.equal(out, x)


# -- what it reports ---------------------------------------------------------------------------------------------------------


def far(count: int) -> Tensor:
    """Zeros of a mapping of its own: an address on the heap may be as small as a number is taken to be."""
    return torch.empty(1 << 24)[:count].zero_()


TENSOR = far(256)
WRONG = {
    "half_at_a_barrier": (64, (), ["thread (0, 0, 0)", "a barrier that not all threads reach", "thread (40, 0, 0) has ended"]),
    "two_barriers": (64, (), ["different barriers"]),
    "barrier_or_ballot": (64, (TENSOR,), ["a barrier that not all threads reach", "thread (32, 0, 0) waits in a ballot"]),
    "lanes_apart": (32, (TENSOR,), ["thread (0, 0, 0)", "lanes of a warp diverge", "ballot for the lanes 0xffffffff", "lane 8 waits in"]),
    "not_in_the_mask": (32, (TENSOR,), ["thread (1, 0, 0)", "lane 1 takes part in a ballot for the lanes 0x1"]),
    "from_a_lane_that_ended": (32, (TENSOR,), ["reads lane 9"]),
    "write_past_static": (32, (TENSOR,), ["thread (31, 0, 0)", "writes 4 bytes", "bounds", "0 bytes past the end of sums (128 bytes)"]),
    "read_before_static": (32, (torch.tensor([3]), TENSOR), ["thread (0, 0, 0)", "reads 4 bytes", "12 bytes before sums (128 bytes)"]),
    "write_past_dynamic": (32, (), ["thread (20, 0, 0)", "0 bytes past the end of dynamic shared memory (80 bytes)"]),
    "read_unwritten": (32, (TENSOR,), ["thread (21, 0, 0)", "that nothing has written, byte 84 of sums (128 bytes)"]),
    "read_without_barrier": (64, (TENSOR,), ["thread (0, 0, 0)", "that nothing has written, byte 252 of sums"]),
    "read_of_the_last_block": (1, (TENSOR,), ["block (1, 0, 0)", "that nothing has written, byte 0 of once (4 bytes)"]),
    "read_before_the_copy_lands": (32, (TENSOR, TENSOR), ["that nothing has written, byte 0 of row"]),
    "too_much_static": (32, (), ["65536 bytes of static shared memory with room, 49152 are there"]),
    "unknown_instruction": (32, (TENSOR,), ["bfind.u32 %0, %1;", "no stand-in"]),
    "trapped": (32, (), ["thread (2, 0, 0)", "__trap()"]),
    "at_most_64": (65, (TENSOR,), ["65 threads a block, 1 to 64 are taken"]),
    "of_a_cluster": (32, (), ["clusters, which have no stand-in"]),
}


@pytest.mark.parametrize("kernel", WRONG)
def test_what_is_wrong_is_reported_with_its_place(run: Run, kernel: str) -> None:
    block, given, says = WRONG[kernel]
    grid = 2 if kernel == "read_of_the_last_block" else 1
    with pytest.raises(RuntimeError) as caught:
        run(kernel, grid, block, *given, shared=80)
    for words in (f"CUDA kernel {kernel}", *says):
        assert words in str(caught.value), str(caught.value)
    out = torch.zeros(24, 60, dtype=torch.int32)
    run("indices", (2, 3, 4), (3, 4, 5), out)
    assert out[23, 59] == 23059, "an abandoned block leaves nothing behind that disturbs the next launch"


@pytest.mark.parametrize(
    ("given", "says"),
    [((), "0 arguments, 1 are taken"), ((TENSOR, 3), "2 arguments, 1 are taken"), ((256,), "argument 0 is 256, an address is taken")],
)
def test_arguments_are_checked_before_the_launch(run: Run, given: tuple[Tensor | int, ...], says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        run("indices", 1, 32, *given)
    with pytest.raises(RuntimeError, match="argument 3 is .*, a number is taken"):
        run("convert_float16", 1, 32, TENSOR, TENSOR, TENSOR, TENSOR)
    with pytest.raises(RuntimeError, match=f"{1 << 20} bytes of dynamic shared memory"):
        run("indices", 1, 32, TENSOR, shared=1 << 20)
    with pytest.raises(KeyError, match="no kernel 'missing'"):
        run("missing", 1, 1)


# -- what it refuses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("void f() { __shared__ float x = 1; }", "__shared__ float x = 1"),
        ('void f() { asm("a.b %0;" : "=r"); }', "operand"),
        ("asm(", "nothing closes"),
    ],
)
def test_a_construct_without_stand_in_is_named(text: str, says: str) -> None:
    with pytest.raises(rewrite.Unsupported, match=says):
        rewrite.rewritten(text)


def test_no_line_moves_and_no_string_is_read() -> None:
    text = 'void f() {\n  asm volatile("cp.async.wait_group %0;"\n    :: "n"(1)\n    : "memory");\n  g("{ asm(");\n}\n'
    assert rewrite.rewritten(text).splitlines()[4] == '  g("{ asm(");'


def test_a_missing_or_old_compiler_is_one_line_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "old-c++"
    old.write_text('#!/bin/sh\ncase "$1" in -dump*) echo 7.5.0;; *) echo "error: unrecognized option $1"; exit 1;; esac\n')
    old.chmod(0o755)
    broken = tmp_path / "broken-c++"
    broken.write_text("no program")
    broken.chmod(0o755)
    for command, reason in {"no-such-c++": "'no-such-c++' was not found", str(old): "(version 7.5.0) has no C++20: error: unrecognized",
                            str(broken): "does not run"}.items():  # fmt: skip
        monkeypatch.setenv("CXX", command)
        with pytest.raises(BackendUnavailable) as caught:
            build.compiler.__wrapped__()
        assert reason in caught.value.reason
        assert "install g++" in caught.value.remedy
        assert "\n" not in str(caught.value)


def test_what_the_compiler_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler_or_skip()
    runtime = build._runtime(None)
    monkeypatch.setattr(build, "_runtime", lambda binding: runtime)  # it is there already: the unit alone is compiled
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="refuses opwise_bad: .*no_such_function.*") as caught:
        build.library("opwise_bad", {"bad": 'extern "C" __global__ void f(int *x) { x[0] = no_such_function(1); }\n'})
    assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError, match="cannot preprocess bad: .*missing.cuh"):
        build.library("opwise_bad", {"bad": '#include "missing.cuh"\n'})


# -- the backends' own host code -----------------------------------------------------------------------------------------------


HOST_MUTANTS: dict[str, Callable[[Tensor, Tensor], tuple[int, ...]]] = {
    "a number is taken": lambda x, out: (out.data_ptr(),),
    "2 arguments, 3 are taken": lambda x, out: (),
    "4 arguments, 3 are taken": lambda x, out: (x.numel(), 0),
}


@pytest.mark.parametrize("says", HOST_MUTANTS)
@pytest.mark.parametrize("backend", ["torch_inline", "cupy_raw"])
def test_wrong_host_code_shows(backend: str, says: str) -> None:
    compiler_or_skip()
    built = importlib.import_module(f"opwise.backends.{backend}.launch").built
    x, out = torch.randn(1000), far(1000)
    recipe = replace(RECIPES["square"][""], sizes=HOST_MUTANTS[says])
    with pytest.raises(RuntimeError, match=f"CUDA kernel square_float32_v16.*{says}"):
        built(recipe)(x, out)(x, out)()


@pytest.mark.parametrize("backend", ["torch_inline", "cupy_raw"])
@pytest.mark.parametrize("mutant", ["sizes swapped", "too few blocks", "half the threads", "too little shared memory"])
def test_a_wrong_order_grid_or_size_is_wrong_or_reported(backend: str, mutant: str) -> None:
    compiler_or_skip()
    built = importlib.import_module(f"opwise.backends.{backend}.launch").built
    right, (a, b), out = RECIPES["matmul"][""], (torch.randn(128, 96), torch.randn(96, 64)), torch.full((128, 64), float("nan"))
    plan = right.plan(a, b, out)
    if mutant == "sizes swapped":
        recipe = replace(right, sizes=lambda *t: right.sizes(*t)[::-1])
    else:
        changed = {
            "too few blocks": replace(plan, grid=(plan.grid[0] - 1, 1, 1)),
            "half the threads": replace(plan, block=(plan.block[0] // 2, 1, 1)),
            "too little shared memory": replace(plan, shared_bytes=plan.shared_bytes // 4),
        }[mutant]
        recipe = replace(right, plan=lambda *t: changed)
    launch = built(recipe)(a, b, out)(a, b, out)
    if mutant in ("half the threads", "too little shared memory"):
        with pytest.raises(RuntimeError, match="shared memory"):
            launch()
    else:
        launch()
        assert not torch.allclose(out, a @ b)
