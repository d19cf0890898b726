"""RMSNorm for opwise: what it is (op.py), and its kernels in torch_eager, triton_jit, torch_inline and cupy_raw."""
