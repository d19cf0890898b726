"""Which matmul kernel of the CUDA C++ sources a product gets: the plan is arithmetic, so no GPU is needed."""

from __future__ import annotations

import pytest

from opwise.backends.cuda_src import matmul_plan
from opwise.backends.cuda_src.matmul_plan import KERNELS, SHARED_LIMIT, SIZE, launch, plan
from opwise.backends.cuda_src.sources import target, unit_of, units

H200 = {"alignment": 16, "sm_count": 132, "capability": (9, 0)}
MATMUL_KINDS = sorted(KERNELS)


def kernel_for(m: int, k: int, n: int, dtype: str = "bfloat16", **changes: object) -> str:
    return plan(m, k, n, dtype, False, **{**H200, **changes}).kernel  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_hopper_gets_its_own_kernels(dtype: str) -> None:
    assert kernel_for(4096, 4096, 4096, dtype) == f"matmul_wgmma_{dtype}_128x256"
    assert kernel_for(3072, 3072, 3072, dtype) == f"matmul_wgmma_{dtype}_128x192"  # 2.9 waves of tiles, not 2.2
    assert kernel_for(1024, 1024, 1024, dtype) == f"matmul_wgmma_{dtype}_128x64"  # 128 tiles for 132 multiprocessors


@pytest.mark.parametrize(
    "changes",
    [
        {"capability": (8, 0)},
        {"capability": (10, 0)},  # wgmma exists on Hopper alone
        {"alignment": 8},
        {"wgmma": False},
        {"dtype": "float32"},
        {"k": 4100},
        {"n": 4092},
        {"m": 2**30 + 1, "k": 8, "n": 8},
        {"m": 16},
    ],
    ids=str,
)
def test_what_the_copy_engine_does_not_take_stays_on_mma(changes: dict[str, object]) -> None:
    shape = {"m": 4096, "k": 4096, "n": 4096}
    assert "wgmma" not in kernel_for(**{**shape, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", MATMUL_KINDS)
def test_a_launch_fits_the_gpu_and_covers_the_product(kind: str) -> None:
    for kernel in KERNELS[kind]:
        found = launch(kernel, kind, 1000, 512, 776, 132)
        assert found.shared_bytes <= SHARED_LIMIT[9, 0] * 1024
        assert unit_of(found.kernel) in units("sm_90")
        assert found.kernel in matmul_plan.kernel_names(kind)
        tiles = -(-1000 // kernel.rows) * -(-776 // kernel.columns)
        assert found.grid[0] == (min(tiles, 132) if kernel.wgmma else tiles)
        if kernel.wgmma:
            assert [matrix[:2] for matrix in found.matrices] == [(1000, 512), (512, 776), (1000, 776)]
            assert all(matrix.box_columns * SIZE[kind] == 128 for matrix in found.matrices), "rows as wide as the swizzle"


def test_only_hopper_compiles_for_itself_alone() -> None:
    assert [target(arch) for arch in ("sm_80", "sm_90", "sm_100")] == ["sm_80", "sm_90a", "sm_100"]
    assert "matmul_wgmma" not in units("sm_100")
