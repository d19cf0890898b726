"""us on an H200 of small products in 16 bits whose rows begin on 4 bytes or 8: (m, k, n) -> kernel -> time, of the quickest that took it;
torch 2.11, buffers in turns so that nothing is in the L2, candidates interleaved, medians. "cuBLAS": torch's own."""

from __future__ import annotations

MEASURED = {
    (63, 170, 108): {"16x32_v4": 3.24, "cluster_mma_32x32_v2_s16": 3.72, "odd_16_s4": 3.73, "odd_16_s1": 3.79, "cuBLAS": 4.32},
    (36, 280, 700): {"16x32_v4": 3.77, "odd_16_s1": 4.37, "odd_40_s4_straight": 4.97, "64x64_v4": 5.71, "cuBLAS": 5.33},
    (40, 138, 108): {"16x32_v4": 3.23, "cluster_mma_32x32_v2_s16": 3.69, "odd_16_s4": 3.73, "odd_16_s1": 3.77, "cuBLAS": 4.20},
    (134, 254, 300): {"16x32_v4": 3.65, "odd_16_s1": 4.58, "odd_40_s4_straight": 4.63, "64x64_v4": 6.25, "cuBLAS": 5.08},
    (606, 224, 52): {"16x32_v4": 3.58, "odd_16_s1": 4.41, "odd_40_s4_straight": 4.66, "64x64_v4": 5.65, "cuBLAS": 4.31},
    (29, 256, 206): {"16x32_v4": 3.31, "cluster_mma_32x32_v2_s16": 3.53, "odd_16_s4": 3.77, "64x64_v4": 4.87, "cuBLAS": 4.54},
    (200, 130, 200): {"16x32_v4": 3.59, "odd_16_s1": 3.94, "odd_40_s1_straight": 4.33, "64x64_v4": 5.63, "cuBLAS": 4.21},
    (100, 300, 100): {"16x32_v4": 3.60, "odd_16_s4": 3.95, "cluster_mma_32x32_v2_s16": 4.28, "64x64_v4": 6.43, "cuBLAS": 5.06},
    (300, 500, 30): {"16x32_v4": 3.94, "cluster_mma_32x32_v2_s16": 3.97, "odd_64_s8": 4.65, "odd_16_s4": 4.72, "cuBLAS": 5.99},
    (26, 68, 278): {
        "strips_8x32_b4_v4": 2.73,
        "16x32_v4": 2.95,
        "beside_16x80_v2": 3.12,
        "odd_16_s1": 3.50,
        "64x64_v4": 3.88,
        "cuBLAS": 3.46,
    },
    (40, 30, 606): {
        "strips_8x32_b4_v4": 2.63,
        "16x32_v4": 3.03,
        "odd_16_s1": 3.24,
        "beside_16x80_v2": 3.25,
        "64x64_v4": 4.23,
        "cuBLAS": 2.84,
    },
    (18, 28, 194): {
        "strips_8x32_b4_v4": 2.52,
        "16x32_v4": 2.90,
        "64x64_v2": 3.03,
        "beside_16x80_v2": 3.09,
        "64x64_v4": 3.15,
        "cuBLAS": 2.74,
    },
    (62, 30, 44): {"strips_8x32_b4_v4": 2.55, "16x32_v4": 2.81, "64x64_v4": 3.62, "cuBLAS": 2.65},
    (688, 74, 76): {"whole_16x80_v2": 2.88, "whole_16x96_v2": 2.90, "16x32_v4": 3.34, "64x64_v4": 5.32, "cuBLAS": 3.55},
    (518, 60, 46): {
        "strips_8x32_b4_v4": 3.01,
        "whole_16x80_v2": 2.73,
        "whole_16x96_v2": 2.76,
        "16x32_v4": 3.10,
        "64x64_v4": 4.04,
        "cuBLAS": 2.87,
    },
    (140, 44, 52): {
        "strips_8x32_b4_v4": 2.68,
        "16x32_v4": 2.87,
        "whole_16x80_v2": 2.90,
        "whole_16x96_v2": 3.02,
        "64x64_v4": 4.08,
        "cuBLAS": 2.76,
    },
    (700, 100, 700): {"odd_40_s1_straight": 4.58, "odd_64_s1_straight": 4.75, "odd_64_s1": 4.78, "64x64_v4": 7.28, "cuBLAS": 6.16},
    (60, 700, 60): {"cluster_mma_32x32_v2_s16": 3.53, "odd_16_s4": 4.17, "16x32_v4": 4.45, "odd_64_s8": 4.89, "cuBLAS": 5.72},
}
