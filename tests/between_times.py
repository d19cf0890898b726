"""What products of 4-byte elements were measured to take by Hopper's kernels: small ones, between the powers of two."""

from __future__ import annotations

# us on H200s, torch 2.11, cold, launches in turns, medians: type, (m, k, n) -> kernel -> time, the fastest of all.
OF_FOUR_BYTES = {
    ("float32", (2176, 256, 832)): {"hopper_128x128_8x16": 26.88, "rows_even_64x64_w8_s1": 34.43, "simt_128x128_v16": 54.10},
    ("float32", (832, 368, 296)): {"rows_even_64x64_w8_s2": 10.64, "rows_even_64x64_w8_s1": 12.06, "rows_even_64x80_w8_s2": 12.39},
    ("float32", (880, 352, 440)): {"rows_even_64x64_w8_s1": 12.17, "simt_64x64_v16": 15.11},
    ("float32", (2432, 552, 936)): {"rows_even_64x64_w8_s1": 75.88, "simt_64x64_v16": 87.38, "hopper_128x128_8x16": 96.87},
    ("float32", (168, 528, 1416)): {"rows_even_64x80_w8_s2": 15.41, "rows_even_64x64_w8_s1": 15.74, "simt_16x32_v16": 16.82},
    ("float32", (2048, 256, 1024)): {"hopper_128x128_8x16": 27.05, "rows_even_64x64_w8_s1": 34.92, "simt_128x128_v16": 54.00},
    ("float32", (1024, 256, 1024)): {"simt_64x64_v16": 17.77, "rows_even_64x64_w8_s1": 18.22, "hopper_128x128_8x16": 26.00},
    ("float32", (4096, 256, 512)): {"hopper_128x128_8x16": 27.31, "rows_even_64x64_w8_s1": 34.99, "simt_128x128_v16": 54.19},
    ("float32", (1536, 384, 768)): {"rows_even_64x64_w8_s1": 34.04, "simt_64x64_v16": 37.27, "hopper_128x128_8x16": 37.43},
    ("float32", (512, 256, 2048)): {"simt_64x64_v16": 17.75, "rows_even_64x64_w8_s1": 18.37, "hopper_128x128_8x16": 26.03},
    ("float32", (640, 320, 640)): {"rows_even_64x64_w8_s1": 11.01, "simt_64x64_v16": 13.71},
    ("float32", (2000, 400, 600)): {"rows_even_64x64_w8_s1": 37.52, "simt_64x64_v16": 39.28, "hopper_128x128_8x16": 40.39},
    ("float32", (2560, 320, 704)): {"hopper_128x128_8x16": 32.63, "rows_even_64x64_w8_s1": 40.06, "simt_128x128_v16": 67.31},
    ("float32", (1024, 128, 2048)): {"hopper_128x128_8x16": 15.80, "simt_128x128_v16": 28.57},
    ("float32", (304, 512, 304)): {"simt_16x32_v16": 7.18, "rows_even_64x64_w8_s4": 8.05, "rows_even_64x80_w8_s4": 9.64},
    ("tfloat32", (1280, 2816, 768)): {"cluster_wgmma_128x128_v16_s2": 24.54, "hopper_64x128": 24.82, "hopper_96x128": 29.93},
    ("tfloat32", (1024, 2816, 896)): {"cluster_wgmma_128x128_v16_s2": 22.32, "hopper_64x128": 24.16, "hopper_96x128": 29.12},
    ("tfloat32", (1536, 2048, 768)): {"hopper_96x128": 22.19, "hopper_64x192": 23.31, "hopper_128x128": 25.40},
}
# Where the model's choice loses more than 4 %: no more than this.
LOSING = {
    (832, 368, 296): 1.14,
    (1024, 2816, 896): 1.09,
}
