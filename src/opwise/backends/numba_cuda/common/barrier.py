"""What Hopper's kernels of several ops share, as intrinsics: mbarriers, whole warps' agreement, integers that stay at 32 bits.

What all lanes of a warp must execute together is marked convergent, so that LLVM copies none of it into a branch.
"""

from __future__ import annotations

from typing import Any

from opwise.backends.numba_cuda.common.compiler import types
from opwise.backends.numba_cuda.common.launch import inlined
from opwise.backends.numba_cuda.common.ptx import instruction

u32, void = types.uint32, types.void

# ---- mbarriers: `phase` is the parity of the phase waited for; a wait for the phase before the first returns at once ---------------------

barrier_init = instruction("mbarrier.init.shared::cta.b64 [$0], $1;", void, u32, u32, effect=True)
barriers_publish = instruction("fence.mbarrier_init.release.cluster;", void, effect=True)  # to TMA
passed = instruction(  # waits a while; 0 where it must be asked again
    "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }", u32, u32, u32, effect=True
)
expect = instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", void, u32, u32, effect=True)  # and so many bytes
arrive = instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", void, u32, effect=True)

arrive_there = instruction("mbarrier.arrive.shared::cluster.b64 _, [$0];", void, u32, effect=True)  # of any block of a cluster


@inlined
def wait(barrier: Any, phase: Any) -> None:
    while passed(barrier, phase) == 0:
        pass


# ---- integers of 32 bits, which Numba's own operators widen to 64: a division there has a loop of its own ------------------------------

divide = instruction("div.u32 $0, $1, $2;", u32, u32, u32)
remainder = instruction("rem.u32 $0, $1, $2;", u32, u32, u32)

# ---- warps ------------------------------------------------------------------------------------------------------------------------------

same_in_warp = instruction(  # lane 0's number, of which the compiler then knows that all lanes have it
    "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", u32, u32, effect=True, together=True
)
elected = instruction(  # 1 in one lane of the warp
    "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 $0, 1, 0, p; }", u32, effect=True, together=True
)
