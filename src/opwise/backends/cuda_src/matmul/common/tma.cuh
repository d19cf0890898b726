// TMA copies of tiles, mbarriers, st.async to blocks of a cluster (sm_90a).
//
// The compiler does not see these memory accesses, so all are volatile and clobber memory. A tile in shared memory has rows of 128 bytes.
// TMA's 128-byte swizzle XORs the number of a 16-byte chunk with the row's number modulo 8; it is by address, so tiles are aligned to 1024
// bytes. wgmma undoes it.
#pragma once
#include "common/cluster.cuh"
#include "common/ptx.cuh"

// The driver's CUtensorMap: address, shape, box and swizzle of a matrix in global memory, encoded on the host. cuda.h is not included.
struct alignas(64) TensorMap {
    char opaque[128];
};

// ---- mbarriers: `phase` is the parity of the phase waited for; a wait for the phase before the first returns at once ---------------

__device__ __forceinline__ void barrier_init(SharedAddress barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialized mbarriers visible to TMA; a barrier makes them visible to other threads.
__device__ __forceinline__ void barriers_publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_wait(SharedAddress barrier, unsigned phase) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{\n"
                     ".reg .pred passed;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 passed, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, passed;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
    }
}
// One arrival, and `bytes` of copies that the phase waits for as well.
__device__ __forceinline__ void barrier_expect(SharedAddress barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(SharedAddress barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives at another block's mbarrier, by its address in the cluster. The default .release.cta semantics avoid a fence of the whole GPU.
__device__ __forceinline__ void barrier_arrive_there(SharedAddress there) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
// This thread arrives when all of its cp.async are complete (.noinc: the barrier's count includes it).
__device__ __forceinline__ void barrier_arrive_copied(SharedAddress barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- TMA: a box of a matrix, its first element at (row, column); outside the matrix zeros are read and nothing is written --------------

__device__ __forceinline__ void box_load(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}
// Multicast of a box to both blocks of a cluster of two, at the same offset; each block's mbarrier counts its bytes.
__device__ __forceinline__ void box_load_both(SharedAddress to, const TensorMap &map, int row, int column, SharedAddress barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
                 "[%4], %5;" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(static_cast<unsigned short>(3))
                 : "memory");
}
// Stores up to a `boxes_commit` form a group. `boxes_wait` waits until all but this thread's PENDING latest groups have read shared memory.
__device__ __forceinline__ void box_store_begin(const TensorMap &map, int row, int column, SharedAddress from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column), "r"(row), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// A group of one store.
__device__ __forceinline__ void box_store(const TensorMap &map, int row, int column, SharedAddress from) {
    box_store_begin(map, row, column, from), boxes_commit();
}
template <int PENDING> __device__ __forceinline__ void boxes_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// Makes this thread's writes to shared memory visible to TMA; a barrier must follow if another thread issues the copy.
__device__ __forceinline__ void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- clusters, beyond cluster.cuh ------------------------------------------------------------------------------------------------

// Sends 16 bytes to another block's shared memory; that block's mbarrier counts them. Does not wait.
__device__ __forceinline__ void push_16(SharedAddress there, const float *from, SharedAddress barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there), "f"(from[0]),
                 "f"(from[1]), "f"(from[2]), "f"(from[3]), "r"(barrier)
                 : "memory");
}
// As barrier_wait, and acquires what other blocks pushed.
__device__ __forceinline__ void barrier_wait_cluster(SharedAddress barrier, unsigned phase) {
    unsigned done = 0;
    while (!done) {
        asm volatile("{\n"
                     ".reg .pred passed;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 passed, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, passed;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
    }
}
