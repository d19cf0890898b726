"""CUDA C++ kernels for nvcc (torch_inline) and NVRTC (cupy_raw), and the plans by which both backends launch them."""
