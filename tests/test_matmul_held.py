"""16-bit products with a B of few columns, all of which a block holds: which get the kernel, over what grid, with what ring."""

from __future__ import annotations

import pytest
from plans import kernel_for

from opwise.backends.cuda_src import matmul_held
from opwise.backends.cuda_src.matmul_held import MOST_STAGES, QUICKEST, SHARED, Tile
from opwise.backends.cuda_src.sources import FOLDER, unit_of

# us on one H200, torch 2.11, by Clock.cold, interleaved, medians: type, (m, k, n) -> kernel -> time, of the quickest of the others.
# Some of 16 columns and more are of rings of a few slots more or less than today's: docs/lab/matmul-cuda.md.
MEASURED = {
    ("bfloat16", (517, 1032, 8)): {"held": 4.391, "columns_mma_8_h1_t256_v16": 3.241, "cuBLAS": 4.911},
    ("float16", (2035, 8200, 8)): {"held": 15.45, "columns_mma_8_h2_t256_v16_s4": 11.66, "cuBLAS": 14.87},
    ("float16", (2063, 4096, 8)): {"held": 8.833, "columns_mma_8_h2_t256_v16_s4": 7.144, "cuBLAS": 9.629},
    ("float16", (3000, 2048, 8)): {"held": 6.583, "columns_mma_8_h1_t256_v16": 5.602, "cuBLAS": 7.103},
    ("bfloat16", (3013, 4104, 8)): {"held": 10.01, "columns_mma_8_h1_t256_v16": 8.827, "cuBLAS": 12.3},
    ("float16", (3101, 8200, 8)): {"held": 17.32, "columns_mma_8_h1_t256_v16": 16.02, "cuBLAS": 20.05},
    ("bfloat16", (4202, 4096, 8)): {"held": 11.34, "columns_mma_8_h1_t256_v16": 11.25, "cuBLAS": 15.2},
    ("float16", (4230, 2048, 8)): {"held": 7.607, "columns_mma_8_h1_t256_v16": 6.757, "cuBLAS": 8.064},
    ("float16", (4245, 8184, 8)): {"held": 21.71, "columns_mma_8_h2_t256_v16_s2": 20.89, "cuBLAS": 24.66},
    ("float16", (6000, 10000, 8)): {"held": 31.65, "columns_mma_8_h2_t256_v16_s4": 34.54, "cuBLAS": 37.22},
    ("float16", (7593, 4088, 8)): {"held": 19.2, "columns_mma_8_h2_t256_v16": 18.32, "cuBLAS": 19.66},
    ("float16", (7800, 2056, 8)): {"held": 11.56, "columns_mma_8_h2_t256_v16": 10.77, "cuBLAS": 14.18},
    ("float16", (8192, 8192, 8)): {"held": 34.84, "columns_mma_8_h2_t256_v16": 37.25, "cuBLAS": 37.92},
    ("float16", (8448, 2056, 8)): {"held": 11.94, "columns_mma_8_h2_t256_v16": 11.37, "cuBLAS": 15.56},
    ("float16", (8449, 2048, 8)): {"held": 11.81, "columns_mma_8_h2_t256_v16": 11.36, "cuBLAS": 12.59},
    ("float16", (8449, 8232, 8)): {"held": 36.38, "columns_mma_8_h2_t256_v16_s4": 40.2, "cuBLAS": 43.91},
    ("bfloat16", (10067, 4096, 8)): {"held": 22.11, "columns_mma_8_h2_t256_v16": 24.17, "cuBLAS": 23.09},
    ("float16", (12579, 8200, 8)): {"held": 50.88, "columns_mma_8_h2_t128_v16": 56.01, "cuBLAS": 57.96},
    ("bfloat16", (16338, 8200, 8)): {"held": 66.12, "columns_mma_8_h2_t256_v16_s4": 72.06, "cuBLAS": 70.79},
    ("bfloat16", (17115, 1032, 8)): {"held": 12.22, "columns_mma_8_h2_t128_v16": 12.35, "cuBLAS": 12.64},
    ("bfloat16", (17960, 4472, 8)): {"held": 41.05, "columns_mma_8_h1_t256_v16": 43.84, "cuBLAS": 47.16},
    ("float16", (20000, 4096, 8)): {"held": 39.91, "columns_mma_8_h2_t64_v16": 43.88, "cuBLAS": 44.37},
    ("float16", (22429, 4096, 8)): {"held": 46.05, "columns_mma_8_h2_t64_v16": 47.15, "cuBLAS": 48.19},
    ("float16", (30000, 4096, 8)): {"held": 58.92, "columns_mma_8_h1_t256_v16": 63.46, "cuBLAS": 61.74},
    ("float16", (45472, 2056, 8)): {"held": 48.5, "columns_mma_8_h1_t256_v16": 49.48, "cuBLAS": 51.89},
    ("float16", (65536, 512, 8)): {"held": 18.58, "columns_mma_8_h2_t256_v16": 18.77, "cuBLAS": 19.82},
    ("float16", (203225, 56, 8)): {"held": 10.07, "columns_mma_8_h2_t32_v16": 8.747, "cuBLAS": 22.92},
    ("bfloat16", (208235, 256, 8)): {"held": 28.93, "columns_mma_8_h2_t128_v16": 28.27, "cuBLAS": 54.75},
    ("float16", (3000, 512, 16)): {"held": 4.11, "columns_mma_16_h1_t256_v16": 3.88, "cuBLAS": 4.09},
    ("float16", (5000, 512, 16)): {"held": 4.65, "columns_mma_16_h2_t256_v16": 4.38, "cuBLAS": 4.57},
    ("float16", (5000, 2048, 16)): {"held": 9.04, "columns_mma_16_h2_t256_v16": 9.3, "cuBLAS": 8.82},
    ("float16", (5000, 4096, 16)): {"held": 13.74, "columns_mma_16_h2_t256_v16": 15.4, "cuBLAS": 13.84},
    ("float16", (7000, 512, 16)): {"held": 5.08, "columns_mma_16_h2_t256_v16": 4.74, "cuBLAS": 5.1},
    ("float16", (7000, 1024, 16)): {"held": 7.01, "columns_mma_16_h2_t256_v16": 6.49, "cuBLAS": 7.05},
    ("float16", (8192, 256, 16)): {"held": 4.16, "columns_mma_16_h2_t256_v16": 3.95, "cuBLAS": 4.75},
    ("float16", (8192, 1024, 16)): {"held": 7.46, "columns_mma_16_h2_t256_v16": 7.01, "cuBLAS": 8.2},
    ("float16", (8192, 2048, 16)): {"held": 11.78, "columns_mma_16_h2_t256_v16": 11.58, "cuBLAS": 12.56},
    ("float16", (8192, 4096, 16)): {"held": 19.25, "columns_mma_16_h2_t256_v16": 21.17, "cuBLAS": 21.19},
    ("float16", (9000, 512, 16)): {"held": 5.52, "columns_mma_16_h2_t256_v16": 6.02, "cuBLAS": 5.65},
    ("float16", (9001, 1000, 16)): {"held": 8.46, "columns_mma_16_h2_t256_v16": 9.48, "cuBLAS": 8.09},
    ("float16", (9216, 256, 16)): {"held": 4.37, "columns_mma_16_h2_t256_v16": 5.42, "cuBLAS": 4.42},
    ("float16", (9500, 1024, 16)): {"held": 8.24, "columns_mma_16_h2_t256_v16": 9.32, "cuBLAS": 8.31},
    ("float16", (10000, 1000, 16)): {"held": 8.95, "columns_mma_16_h2_t256_v16": 9.81, "cuBLAS": 8.54},
    ("float16", (11000, 256, 16)): {"held": 4.56, "columns_mma_16_h2_t256_v16": 5.67, "cuBLAS": 4.6},
    ("float16", (12000, 128, 16)): {"held": 3.74, "columns_mma_16_h2_t256_v16": 5.04, "cuBLAS": 3.9},
    ("float16", (12000, 256, 16)): {"held": 4.68, "columns_mma_16_h2_t256_v16": 5.84, "cuBLAS": 4.77},
    ("float16", (16384, 1024, 16)): {"held": 11.54, "columns_mma_16_h2_t128_v16": 11.5, "cuBLAS": 11.82},
    ("float16", (17000, 328, 16)): {"held": 6.29, "columns_mma_16_h2_t128_v16": 8.04, "cuBLAS": 6.48},
    ("float16", (20000, 2048, 16)): {"held": 23.16, "columns_mma_16_h2_t128_v16": 29.31, "cuBLAS": 24.07},
    ("float16", (30000, 512, 16)): {"held": 10.86, "columns_mma_16_h2_t128_v16": 11.75, "cuBLAS": 10.94},
    ("float16", (36000, 512, 16)): {"held": 12.63, "columns_mma_16_h2_t64_v16": 15.34, "cuBLAS": 13.32},
    ("float16", (65536, 64, 16)): {"held": 5.88, "columns_mma_16_h2_t32_v16": 5.16, "cuBLAS": 6.32},
    ("float16", (65536, 128, 16)): {"held": 8.04, "columns_mma_16_h2_t32_v16": 7.18, "cuBLAS": 8.34},
    ("float16", (65536, 512, 16)): {"held": 19.91, "columns_mma_16_h2_t32_v16": 20.92, "cuBLAS": 20.33},
    ("float16", (140000, 64, 16)): {"held": 8.77, "columns_mma_16_h2_t32_v16": 8.67, "cuBLAS": 11.43},
    ("float16", (140000, 256, 16)): {"held": 22.08, "columns_mma_16_h2_t32_v16": 24.04, "cuBLAS": 24.62},
    ("float16", (200000, 64, 16)): {"held": 11.55, "columns_mma_16_h2_t32_v16": 11.1, "cuBLAS": 13.96},
    ("float16", (14000, 72, 16)): {"held": 3.632, "columns_mma_16_h2_t64_v16": 3.367, "cuBLAS": 3.961},
    ("float16", (20000, 128, 16)): {"held": 4.332, "columns_mma_16_h2_t32_v16": 4.479, "cuBLAS": 4.529},
    ("float16", (22000, 64, 16)): {"held": 3.705, "columns_mma_16_h2_t32_v16": 3.301, "cuBLAS": 3.965},
    ("float16", (30000, 64, 16)): {"held": 4.056, "columns_mma_16_h2_t32_v16": 3.56, "cuBLAS": 4.364},
    ("float16", (35000, 80, 16)): {"held": 5.049, "columns_mma_16_h2_t32_v16": 5.179, "cuBLAS": 5.582},
    ("float16", (40000, 64, 16)): {"held": 4.564, "columns_mma_16_h2_t32_v16": 4.399, "cuBLAS": 4.727},
    ("float16", (100000, 160, 16)): {"held": 12.23, "columns_mma_16_h2_t32_v16": 12.9, "cuBLAS": 12.62},
    ("float16", (140000, 128, 16)): {"held": 13.42, "columns_mma_16_h2_t32_v16": 13.76, "cuBLAS": 15.51},
    ("float16", (1000, 1024, 24)): {"held": 4.66, "64x32_s8": 3.95, "cuBLAS": 4.76},
    ("float16", (2000, 512, 24)): {"held": 3.87, "columns_mma_24_h1_t256_v16": 3.4, "cuBLAS": 4.02},
    ("float16", (2000, 1024, 24)): {"held": 4.99, "64x32_s4": 5.06, "cuBLAS": 5.19},
    ("float16", (2113, 512, 24)): {"held": 4.07, "64x32_s2": 4.35, "cuBLAS": 4.13},
    ("float16", (2300, 256, 24)): {"held": 3.44, "64x64_s1": 4.21, "cuBLAS": 3.63},
    ("float16", (2300, 1024, 24)): {"held": 5.28, "64x32_s4": 5.29, "cuBLAS": 5.46},
    ("float16", (2500, 2048, 24)): {"held": 7.42, "64x32_s4": 7.16, "cuBLAS": 6.95},
    ("float16", (3000, 256, 24)): {"held": 3.5, "64x64_s1": 4.37, "cuBLAS": 3.48},
    ("float16", (3000, 512, 24)): {"held": 4.23, "128x32_s2": 4.49, "cuBLAS": 4.1},
    ("float16", (3000, 1024, 24)): {"held": 5.44, "64x32_s4": 5.66, "cuBLAS": 5.31},
    ("float16", (3500, 512, 24)): {"held": 4.36, "128x32_s2": 4.73, "cuBLAS": 4.43},
    ("float16", (3500, 1024, 24)): {"held": 5.57, "128x32_s2": 6.08, "cuBLAS": 5.77},
    ("float16", (3500, 2048, 24)): {"held": 7.73, "64x32_s4": 8.49, "cuBLAS": 7.69},
    ("float16", (4096, 256, 24)): {"held": 3.69, "columns_mma_24_h1_t256_v16": 3.71, "cuBLAS": 3.67},
    ("float16", (4096, 1024, 24)): {"held": 5.74, "columns_mma_24_h1_t256_v16": 5.92, "cuBLAS": 5.68},
    ("float16", (4096, 2048, 24)): {"held": 8.02, "64x32_s2": 9.48, "cuBLAS": 7.7},
    ("bfloat16", (4097, 520, 24)): {"held": 4.77, "columns_mma_24_h1_t256_v16": 4.65, "cuBLAS": 4.56},
    ("float16", (5000, 512, 24)): {"held": 4.83, "128x32_s2": 5.17, "cuBLAS": 4.65},
    ("float16", (5000, 1024, 24)): {"held": 6.36, "128x32_s2": 6.76, "cuBLAS": 6.07},
    ("float16", (6000, 512, 24)): {"held": 4.97, "128x32_s2": 5.46, "cuBLAS": 4.97},
    ("float16", (7000, 256, 24)): {"held": 4.18, "128x32_s1": 4.7, "cuBLAS": 4.13},
    ("float16", (8192, 64, 24)): {"held": 2.98, "columns_mma_24_h2_t256_v16": 3.53, "cuBLAS": 3.57},
    ("float16", (8192, 256, 24)): {"held": 4.27, "columns_mma_24_h2_t256_v16": 5.02, "cuBLAS": 4.73},
    ("float16", (8192, 1024, 24)): {"held": 7.64, "columns_mma_24_h2_t256_v16": 8.2, "cuBLAS": 8.18},
    ("float16", (8192, 2048, 24)): {"held": 11.91, "128x32_s2": 12.77, "cuBLAS": 12.45},
    ("float16", (9000, 1000, 24)): {"held": 8.77, "128x32_s1": 10.72, "cuBLAS": 8.18},
    ("float16", (10000, 1000, 24)): {"held": 9.14, "128x32_s1": 11.4, "cuBLAS": 8.74},
    ("bfloat16", (11000, 512, 24)): {"held": 6.1, "128x32_s1": 7.33, "cuBLAS": 6.19},
    ("float16", (13500, 328, 24)): {"held": 5.89, "128x32_s1": 7.41, "cuBLAS": 5.91},
    ("float16", (20000, 64, 24)): {"held": 3.68, "128x32_s1": 4.56, "cuBLAS": 4.05},
    ("float16", (20000, 256, 24)): {"held": 5.73, "128x32_s1": 7.55, "cuBLAS": 6.01},
    ("float16", (20000, 1024, 24)): {"held": 13.43, "128x32_s1": 16.42, "cuBLAS": 13.89},
    ("float16", (20000, 2048, 24)): {"held": 23.23, "128x32_s1": 28.52, "cuBLAS": 24.36},
    ("float16", (30000, 512, 24)): {"held": 11.02, "128x32_s1": 13.49, "cuBLAS": 11.36},
    ("bfloat16", (34000, 200, 24)): {"held": 7.92, "128x32_s1": 11.14, "cuBLAS": 8.43},
    ("bfloat16", (34567, 1544, 24)): {"held": 31.89, "128x32_s1": 42.34, "cuBLAS": 32.64},
    ("float16", (65536, 256, 24)): {"held": 12.11, "columns_mma_24_h2_t32_v16": 12.58, "cuBLAS": 12.63},
    ("float16", (65536, 512, 24)): {"held": 20.23, "columns_mma_24_h2_t32_v16": 22.3, "cuBLAS": 21.15},
    ("float16", (65536, 2048, 24)): {"held": 67.35, "128x64": 88.09, "cuBLAS": 69.46},
    ("float16", (200000, 64, 24)): {"held": 12.15, "columns_mma_24_h2_t32_v16": 14.79, "cuBLAS": 15.28},
    ("float16", (1000, 256, 40)): {"held": 3.38, "16x32_v16": 3.57, "cuBLAS": 3.83},
    ("float16", (1000, 512, 40)): {"held": 3.94, "16x32_v16": 4.19, "cuBLAS": 4.54},
    ("float16", (1000, 1024, 40)): {"held": 5.01, "64x64_s8": 4.66, "cuBLAS": 5.11},
    ("float16", (1500, 256, 40)): {"held": 3.5, "64x64_s1": 3.85, "cuBLAS": 3.5},
    ("float16", (1500, 512, 40)): {"held": 4.0, "64x64_s4": 4.25, "cuBLAS": 3.97},
    ("float16", (1500, 1024, 40)): {"held": 5.16, "64x64_s4": 5.1, "cuBLAS": 5.17},
    ("float16", (1500, 2048, 40)): {"held": 7.36, "64x64_s8": 6.56, "cuBLAS": 6.98},
    ("float16", (2000, 256, 40)): {"held": 3.55, "64x64_s1": 4.03, "cuBLAS": 3.52},
    ("float16", (2000, 1024, 40)): {"held": 5.39, "64x64_s4": 5.81, "cuBLAS": 5.24},
    ("float16", (2001, 2048, 40)): {"held": 7.58, "64x64_s4": 7.82, "cuBLAS": 7.15},
    ("float16", (3000, 512, 40)): {"held": 4.56, "64x64_s1": 5.48, "cuBLAS": 4.18},
    ("float16", (4096, 256, 40)): {"held": 3.85, "64x64_s1": 4.83, "cuBLAS": 3.86},
    ("float16", (4096, 1024, 40)): {"held": 6.19, "64x64_s2": 7.83, "cuBLAS": 5.95},
    ("float16", (4096, 2048, 40)): {"held": 8.69, "64x64_s2": 10.88, "cuBLAS": 8.22},
    ("float16", (4100, 1000, 40)): {"held": 6.37, "64x64_s1": 8.55, "cuBLAS": 6.07},
    ("float16", (5000, 512, 40)): {"held": 5.13, "64x64_s1": 6.45, "cuBLAS": 4.84},
    ("float16", (5000, 1000, 40)): {"held": 7.15, "64x64_s1": 9.46, "cuBLAS": 6.56},
    ("float16", (7000, 1024, 40)): {"held": 7.79, "128x64": 10.13, "cuBLAS": 7.34},
    ("float16", (8192, 64, 40)): {"held": 3.09, "64x64_v16": 3.75, "cuBLAS": 3.52},
    ("float16", (8192, 256, 40)): {"held": 4.5, "64x64_s1": 6.48, "cuBLAS": 4.49},
    ("float16", (8192, 1024, 40)): {"held": 8.12, "128x64": 10.26, "cuBLAS": 7.81},
    ("float16", (8192, 2048, 40)): {"held": 12.36, "64x64_s1": 18.11, "cuBLAS": 12.1},
    ("float16", (9001, 1000, 40)): {"held": 9.36, "128x64": 11.54, "cuBLAS": 8.33},
    ("float16", (10000, 1000, 40)): {"held": 9.77, "128x64": 12.32, "cuBLAS": 9.29},
    ("float16", (11000, 256, 40)): {"held": 4.93, "128x64": 6.19, "cuBLAS": 4.9},
    ("float16", (20000, 64, 40)): {"held": 3.86, "64x64_v16": 5.35, "cuBLAS": 4.33},
    ("float16", (20000, 256, 40)): {"held": 6.03, "128x64": 8.81, "cuBLAS": 6.49},
    ("float16", (20000, 1024, 40)): {"held": 13.95, "128x64": 20.02, "cuBLAS": 14.22},
    ("float16", (20000, 2048, 40)): {"held": 25.75, "128x64": 36.46, "cuBLAS": 23.9},
    ("float16", (30000, 512, 40)): {"held": 11.51, "128x64": 16.41, "cuBLAS": 12.07},
    ("bfloat16", (33800, 64, 40)): {"held": 4.9, "128x64": 6.65, "cuBLAS": 5.38},
    ("float16", (65536, 256, 40)): {"held": 12.6, "128x64": 19.74, "cuBLAS": 13.56},
    ("float16", (65536, 512, 40)): {"held": 21.01, "128x64": 27.61, "cuBLAS": 23.01},
    ("float16", (65536, 2048, 40)): {"held": 75.31, "128x64": 79.57, "cuBLAS": 76.68},
    ("bfloat16", (70003, 136, 40)): {"held": 10.7, "128x64": 20.16, "cuBLAS": 11.51},
    ("float16", (200000, 64, 40)): {"held": 13.5, "128x64": 26.38, "cuBLAS": 16.0},
    ("float16", (1000, 256, 56)): {"held": 3.57, "16x32_v16": 3.88, "cuBLAS": 3.82},
    ("float16", (1000, 512, 56)): {"held": 4.31, "16x32_v16": 4.73, "cuBLAS": 4.52},
    ("float16", (1000, 1000, 56)): {"held": 5.78, "64x64_s8": 4.69, "cuBLAS": 5.74},
    ("float16", (1500, 512, 56)): {"held": 4.41, "64x64_s1": 4.36, "cuBLAS": 4.02},
    ("float16", (2000, 256, 56)): {"held": 3.74, "64x64_s1": 3.88, "cuBLAS": 3.46},
    ("float16", (2000, 512, 56)): {"held": 4.49, "64x64_s1": 4.58, "cuBLAS": 4.05},
    ("float16", (2000, 1024, 56)): {"held": 5.92, "64x64_s2": 5.56, "cuBLAS": 5.32},
    ("float16", (3000, 256, 56)): {"held": 3.87, "64x64_s1": 4.2, "cuBLAS": 3.57},
    ("float16", (3000, 512, 56)): {"held": 4.93, "64x64_s1": 5.09, "cuBLAS": 4.21},
    ("float16", (3000, 1000, 56)): {"held": 6.8, "64x64_s2": 6.4, "cuBLAS": 5.84},
    ("float16", (3000, 1600, 56)): {"held": 8.47, "64x64_s2": 7.47, "cuBLAS": 6.56},
    ("float16", (4000, 64, 56)): {"held": 2.87, "64x64_v16": 3.27, "cuBLAS": 3.26},
    ("float16", (4096, 256, 56)): {"held": 4.03, "64x64_s1": 4.48, "cuBLAS": 3.85},
    ("float16", (4096, 512, 56)): {"held": 5.09, "64x64_s1": 5.52, "cuBLAS": 4.52},
    ("float16", (4096, 1024, 56)): {"held": 6.77, "64x64_s2": 6.93, "cuBLAS": 5.88},
    ("float16", (4096, 1536, 56)): {"held": 8.38, "64x64_s2": 8.29, "cuBLAS": 7.05},
    ("float16", (5000, 512, 56)): {"held": 5.6, "64x64_s1": 5.83, "cuBLAS": 4.78},
    ("float16", (5000, 1000, 56)): {"held": 7.79, "64x64_s1": 8.2, "cuBLAS": 6.49},
    ("float16", (6000, 256, 56)): {"held": 4.43, "64x64_s1": 5.07, "cuBLAS": 4.13},
    ("float16", (6000, 512, 56)): {"held": 5.72, "128x64": 6.25, "cuBLAS": 5.04},
    ("float16", (6000, 1024, 56)): {"held": 7.74, "128x64": 8.49, "cuBLAS": 7.07},
    ("float16", (6000, 1536, 56)): {"held": 9.86, "128x64": 10.72, "cuBLAS": 8.86},
    ("float16", (7000, 64, 56)): {"held": 3.09, "64x64_v16": 3.63, "cuBLAS": 3.47},
    ("float16", (7000, 512, 56)): {"held": 6.16, "64x64_s1": 6.56, "cuBLAS": 5.31},
    ("float16", (7000, 1024, 56)): {"held": 8.59, "64x64_s1": 8.89, "cuBLAS": 7.46},
    ("float16", (8000, 1536, 56)): {"held": 11.06, "128x64": 11.86, "cuBLAS": 9.93},
    ("float16", (8192, 1024, 56)): {"held": 8.86, "64x64_s1": 10.07, "cuBLAS": 7.87},
    ("bfloat16", (9001, 1000, 56)): {"held": 10.12, "128x64": 10.65, "cuBLAS": 8.39},
    ("float16", (9001, 1000, 56)): {"held": 10.08, "128x64": 10.6, "cuBLAS": 8.41},
    ("float16", (10000, 1000, 56)): {"held": 10.53, "128x64": 11.2, "cuBLAS": 9.39},
    ("float16", (11000, 256, 56)): {"held": 5.34, "128x64": 5.81, "cuBLAS": 4.94},
    ("float16", (12000, 256, 56)): {"held": 5.41, "128x64": 5.92, "cuBLAS": 5.08},
    ("float16", (16384, 1024, 56)): {"held": 12.81, "128x64": 13.51, "cuBLAS": 12.9},
    ("float16", (20000, 1024, 56)): {"held": 14.1, "128x64": 18.36, "cuBLAS": 14.35},
    ("float16", (30000, 512, 56)): {"held": 11.98, "128x64": 14.15, "cuBLAS": 12.38},
    ("float16", (33333, 328, 56)): {"held": 11.11, "128x64": 12.8, "cuBLAS": 11.22},
    ("float16", (65536, 64, 56)): {"held": 7.02, "128x64": 8.61, "cuBLAS": 8.08},
    ("float16", (65536, 512, 56)): {"held": 21.9, "128x64": 24.16, "cuBLAS": 23.6},
    ("float16", (140000, 256, 56)): {"held": 25.86, "128x64": 30.06, "cuBLAS": 27.73},
}
SIZES = [(m, k) for m in (1, 17, 500, 2113, 8192, 20_000, 33_793, 200_000) for k in (8, 72, 200, 320, 1000, 2048, 4096)]


@pytest.mark.parametrize(("product", "times"), MEASURED.items(), ids=str)
def test_a_product_gets_it_where_it_was_quick(product: tuple[str, tuple[int, int, int]], times: dict[str, float]) -> None:
    """3 % slower than the quickest at most."""
    kind, (m, k, n) = product
    taken = "_held_" in kernel_for(kind, m, k, n)
    others = min(us for name, us in times.items() if name not in ("held", "cuBLAS"))
    assert (times["held"] if taken else others) <= 1.03 * min(times["held"], others)


@pytest.mark.parametrize("columns", QUICKEST)
def test_the_ring_fits_and_a_slot_is_always_the_same_warps(columns: int) -> None:
    """A warp that waits for every round of a slot alone cannot take one round for the next but one."""
    tile = Tile("float16", columns)
    for m, k in SIZES:
        if SHARED - tile.beside(k, 0) < matmul_held.LEAST_RING:
            assert not matmul_held.fitting(max(m, 10_000), k, columns, "float16", 132)
            continue
        plan = tile.launch(m, k, columns, 132)
        stages, sharing, sixteens, tiles = plan.shares
        assert plan.shared_bytes <= SHARED
        assert 1 <= stages <= MOST_STAGES
        assert plan.block[0] == 32 * (sixteens * sharing + 1) <= 32 * 17
        assert plan.matrices[0].box_rows == 16 * sixteens <= 256
        assert 16 * sixteens * (tiles - 1) < m <= 16 * sixteens * tiles
        assert sharing == 1 or plan.grid[0] == tiles, "sums meet in the ring, which nobody fills any more"
        assert (sharing - 1) * columns // 8 * 4 * 128 <= stages * 16 * 128, "and fit there"
        assert stages % sharing == 0 or stages == -(-k // 64)


def test_the_plan_knows_the_widths_that_the_source_has() -> None:
    source = (FOLDER / "matmul_wgmma.cu").read_text()
    for n in QUICKEST:
        assert f"HELD_KERNEL(dtype, {n})" in source
    assert source.count("HELD_KERNEL(dtype, ") == len(QUICKEST) + 1, "and the macro's own"
    assert {unit_of(Tile(kind, n).kernel) for kind in ("float16", "bfloat16") for n in QUICKEST} == {"matmul_wgmma"}


def test_it_is_hopper_s_and_for_rows_on_16_bytes() -> None:
    def taken(capability: tuple[int, int] = (9, 0), alignment: int = 16, wgmma: bool = True) -> bool:
        return "held" in kernel_for("bfloat16", 20_000, 1024, 24, alignment, capability=capability, wgmma=wgmma)

    assert taken()
    assert not any((taken((8, 0)), taken((10, 0)), taken(alignment=8), taken(wgmma=False)))
