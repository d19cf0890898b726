"""CUDA C++ device code, written once for two toolchains, nvcc (torch_inline) and NVRTC (cupy_raw), and what both launch of it."""
