// Mbarriers, asynchronous copies to shared memory and st.async between the blocks of a cluster; one function per instruction, by pointers.
// sm_90, but cp.async sm_80.
#pragma once
#include "common/cluster.cuh"

__device__ __forceinline__ unsigned dynamic_shared_bytes() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}
__device__ __forceinline__ unsigned shared_address(const void *p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
// cp.async of 16 bytes. This thread may read them after copies_done().
__device__ __forceinline__ void copy_to_shared(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

using Mbarrier = unsigned long long;
__device__ __forceinline__ void mbarrier_init(Mbarrier *barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// By all threads. Initializes an mbarrier whose only phase ends when `bytes` have been sent to this block; other blocks may use it after
// the cluster's next barrier. The first __syncwarp() is for racecheck, which does not see that init and expect_tx are the same thread's.
__device__ __forceinline__ void mbarrier_of_cluster(Mbarrier *barrier, unsigned bytes) {
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
    }
    __syncwarp();
}
// Waits until all has been sent to this block, which may then be read.
__device__ __forceinline__ void wait_for_cluster(Mbarrier *barrier) {
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0; @!done bra again; }"
                 ::"r"(shared_address(barrier)) : "memory");
}
// Sends two floats to the address in block `rank` that corresponds to `mine`; its mbarrier counts the bytes. Neither waits nor fences.
__device__ __forceinline__ void send_to_block(float2 *mine, Mbarrier *barrier, unsigned rank, float first, float second) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(of_block(shared_address(mine), rank)), "f"(first), "f"(second), "r"(of_block(shared_address(barrier), rank)) : "memory");
}

// ---- barriers in shared memory, copies to it ----------------------------------------------------------------------------------------

__device__ __forceinline__ void mbarriers_visible() {  // to TMA, too
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(Mbarrier *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(Mbarrier *barrier, unsigned parity) {
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again; }"
                 ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}
// By one thread. The barrier's phase ends when all bytes have arrived.
__device__ __forceinline__ void copy_in_bulk(void *to, const void *from, unsigned bytes, Mbarrier *barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ unsigned multiprocessors() {
    unsigned count;
    asm("mov.u32 %0, %%nsmid;" : "=r"(count));
    return count;
}
__device__ __forceinline__ unsigned clock_now() {
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}
__device__ __forceinline__ void wait_clocks(unsigned clocks) {
    for (const unsigned begin = clock_now(); clock_now() - begin < clocks;) asm volatile("nanosleep.u32 64;" ::: "memory");
}
