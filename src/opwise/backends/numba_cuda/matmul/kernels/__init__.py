"""The GEMM kernels, one idea a file: ../../README.md lists them."""
