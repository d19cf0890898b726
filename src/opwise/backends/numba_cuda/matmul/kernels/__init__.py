"""The GEMM kernels, one design in each file; ../../README.md lists them."""
