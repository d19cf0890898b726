"""Intrinsics that sm_90 kernels of several ops share: mbarriers, 32-bit division, warp-uniform values.

Warp-collective instructions are marked convergent, so that LLVM does not duplicate them into branches.
"""

from __future__ import annotations

from typing import Any

from opwise.backends.numba_cuda.common.compiler import types
from opwise.backends.numba_cuda.common.launch import inlined
from opwise.backends.numba_cuda.common.ptx import instruction

u32, void = types.uint32, types.void

# ---- mbarriers: a wait's `phase` is the parity of the phase that must complete; on a fresh mbarrier parity 1 returns at once -------------

barrier_init = instruction("mbarrier.init.shared::cta.b64 [$0], $1;", void, u32, u32, effect=True)
barriers_publish = instruction("fence.mbarrier_init.release.cluster;", void, effect=True)  # to TMA
passed = instruction(  # may suspend the thread up to a time limit; 0: retry
    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }", u32, u32, u32, effect=True
)
expect = instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", void, u32, u32, effect=True)  # arrives; adds bytes
arrive = instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", void, u32, effect=True)

arrive_there = instruction("mbarrier.arrive.shared::cluster.b64 _, [$0];", void, u32, effect=True)  # any block's mbarrier


@inlined
def wait(barrier: Any, phase: Any) -> None:
    while passed(barrier, phase) == 0:
        pass


# ---- 32-bit division: Numba's operators widen to 64 bits, where division is a slow subroutine ------------------------------------------

divide = instruction("div.u32 $0, $1, $2;", u32, u32, u32)
remainder = instruction("rem.u32 $0, $1, $2;", u32, u32, u32)

# ---- warps ------------------------------------------------------------------------------------------------------------------------------

same_in_warp = instruction(  # lane 0's value, which the compiler then treats as warp-uniform
    "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", u32, u32, effect=True, together=True
)
elected = instruction(  # 1 in one lane of the warp
    "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 $0, 1, 0, p; }", u32, effect=True, together=True
)
