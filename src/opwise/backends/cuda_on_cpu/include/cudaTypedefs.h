// Replaces CUDA's header: the declarations that binding.cpp needs. No kernel here takes a tensor map, and the encoder is not found.
#pragma once
#include <cstdint>

#include "cuda_runtime.h"

using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_SUPPORTED = 801 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_UINT16 = 1 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_128B };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };
struct alignas(64) CUtensorMap {
    std::uint64_t opaque[16];
};
using PFN_cuTensorMapEncodeTiled_v12000 = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                                       const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, int, CUtensorMapSwizzle,
                                                       int, int);
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };
constexpr int cudaEnableDefault = 0;
inline cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **entry, unsigned, int, cudaDriverEntryPointQueryResult *found) {
    *entry = nullptr, *found = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
