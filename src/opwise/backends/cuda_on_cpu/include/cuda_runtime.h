// Replaces CUDA's header for torch_inline's binding.cpp: a launch runs the kernel synchronously.
#pragma once
#include <cstddef>
#include <string>

#include "vectors.h"

namespace cpu {
struct Registered;
}
extern "C" {
const cpu::Registered *opwise_kernel_at(const void *address);
int opwise_launch(const cpu::Registered *, const unsigned *, void **, int, std::size_t, char *, std::size_t);
}

using cudaStream_t = struct CUstream_st *;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidDeviceFunction = 98, cudaErrorLaunchFailure = 719 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed };
struct cudaFuncAttributes {
    int maxDynamicSharedSizeBytes, requiredClusterWidth;
};
#define CUDART_VERSION 13000

inline std::string &opwise_why() {
    static thread_local std::string why;
    return why;
}
inline const char *cudaGetErrorName(cudaError_t) { return "on the CPU"; }
inline const char *cudaGetErrorString(cudaError_t) { return opwise_why().c_str(); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *found, const void *kernel) {
    *found = {48 << 10, 0};
    opwise_why() = "it is no kernel of this library";
    return opwise_kernel_at(kernel) == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
inline cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, std::size_t shared, cudaStream_t) {
    const unsigned size[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
    char why[1024];
    const int failed = opwise_launch(opwise_kernel_at(kernel), size, arguments, -1, shared, why, sizeof why);
    opwise_why() = why;
    return failed ? cudaErrorLaunchFailure : cudaSuccess;
}
inline cudaError_t cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, std::size_t, cudaStream_t) {
    opwise_why() = "it asks for all its blocks at once, and here they run one after another";
    return cudaErrorLaunchFailure;
}
