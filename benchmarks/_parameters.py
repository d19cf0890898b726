"""The axes of every benchmark. They are written out, and not taken from opwise, because asv keeps one list for all machines and all
commits: an old commit's lists would overwrite today's. tests/test_benchmarks.py holds them to OPS and BACKENDS."""

from __future__ import annotations

BACKENDS = ["torch_eager", "torch_inline", "cupy_raw", "numba_cuda", "triton_jit"]
ARCHITECTURES = ["sm_80", "sm_90", "sm_100"]
DTYPES = ["float32", "float16", "bfloat16"]
PRODUCT_DTYPES = [*DTYPES, "tfloat32"]

# A shape that the launch limits, one that the memory does; of softmax one with long rows, of matmul an odd one and two square ones.
SHAPES = {
    "square": ["1024x1024", "8192x8192"],
    "mean": ["1024x1024", "8192x8192"],
    "gelu": ["1024x1024", "8192x8192"],
    "softmax": ["1823x781", "4096x4096", "1024x65536"],
    "matmul": ["583x931x781", "2048x2048x2048", "4096x4096x4096"],
}
