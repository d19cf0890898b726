// Thread block clusters (sm_90 and later) and distributed shared memory. Addresses are 32-bit shared memory addresses.
#pragma once

// The cluster size in a kernel's declaration: a plain launch by any library then makes clusters.
#define OF_CLUSTERS_1
#define OF_CLUSTERS_2 __cluster_dims__(2, 1, 1)
#define OF_CLUSTERS_3 __cluster_dims__(3, 1, 1)
#define OF_CLUSTERS_4 __cluster_dims__(4, 1, 1)
#define OF_CLUSTERS_8 __cluster_dims__(8, 1, 1)
#define OF_CLUSTERS_16 __cluster_dims__(16, 1, 1)

__device__ __forceinline__ unsigned rank_in_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// The cluster's barrier, for all threads of all blocks. Relaxed: it does not make this thread's writes visible to the other blocks.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive_written() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The address in block `rank` that corresponds to `mine` in this block.
__device__ __forceinline__ unsigned of_block(unsigned mine, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(mine), "r"(rank));
    return there;
}
// A float from another block's shared memory, or 0 without a load. The value must be used before that block may end, so that no load is
// then in flight.
__device__ __forceinline__ float load_from_block(unsigned there, bool used) {
    float x;
    asm volatile("{\n"
                 ".reg .pred used;\n"
                 "setp.ne.u32 used, %2, 0;\n"
                 "mov.f32 %0, 0f00000000;\n"
                 "@used ld.shared::cluster.f32 %0, [%1];\n"
                 "}"
                 : "=f"(x)
                 : "r"(there), "r"(static_cast<unsigned>(used))
                 : "memory");
    return x;
}
