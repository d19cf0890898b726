// What softmax's clusters ask of sm_90 (and of sm_80: copies to shared memory), an instruction a function.
#pragma once

__device__ __forceinline__ unsigned dynamic_shared_bytes() {
    unsigned bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}
__device__ __forceinline__ unsigned shared_address(const void *p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
// Not waited for. The thread that asked may read it behind copies_done().
__device__ __forceinline__ void copy_to_shared(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ unsigned rank_in_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// For who has nothing to say but that it is here.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Writes to the place that `mine` has in block `rank`.
__device__ __forceinline__ void store_in_block(unsigned *mine, unsigned rank, unsigned value) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.u32 [there], %2; }"
                 ::"r"(shared_address(mine)), "r"(rank), "r"(value) : "memory");
}
__device__ __forceinline__ void store_in_block(float2 *mine, unsigned rank, float first, float second) {
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v2.f32 [there], {%2, %3}; }"
                 ::"r"(shared_address(mine)), "r"(rank), "f"(first), "f"(second) : "memory");
}

using Bell = unsigned long long;  // an mbarrier
__device__ __forceinline__ void bell_init(Bell *bell, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bell)), "r"(arrivals) : "memory");
}
// By one thread, whose cluster knows of the bell behind its next barrier. It rings once, when so many bytes have been sent to this block.
__device__ __forceinline__ void bell_of_cluster(Bell *bell, unsigned bytes) {
    bell_init(bell, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bell)), "r"(bytes) : "memory");
}
// Behind it what was sent to this block may be read.
__device__ __forceinline__ void wait_for_cluster(Bell *bell) {
    asm volatile("{ .reg .pred rung; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 rung, [%0], 0; @!rung bra again; }"
                 ::"r"(shared_address(bell)) : "memory");
}
// To the place that `mine` has in block `rank`, whose bell counts the bytes. Not waited for, and without a fence.
__device__ __forceinline__ void send_to_block(float2 *mine, Bell *bell, unsigned rank, float first, float second) {
    asm volatile("{ .reg .b32 there, bell; mapa.shared::cluster.u32 there, %0, %2; mapa.shared::cluster.u32 bell, %1, %2; "
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [bell]; }"
                 ::"r"(shared_address(mine)), "r"(shared_address(bell)), "r"(rank), "f"(first), "f"(second) : "memory");
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
