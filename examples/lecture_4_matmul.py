# %% [markdown]
# # Matmul: from one thread an element to 25 lines of Triton
# The textbook kernel is right and slow. What makes the difference is how often each number is fetched.

# %%
import torch

import opwise
from opwise.backends import probe
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OPS
from opwise.ops.spec import Workload

ON_GPU = torch.cuda.is_available()
device = torch.device("cuda:0" if ON_GPU else "cpu")
spec = OPS["matmul"]

# %% [markdown]
# ## The textbook kernel, and how to check a product
# 1e-4 of what? A sum of K products is off by about sqrt(K) roundings of their absolute values: the bound says it of each element.

# %%
workload = Workload("matmul", (1024, 1024, 1024) if ON_GPU else (24, 32, 40), "float32")
a, b = spec.make_inputs(workload, device, 0)
reference = spec.reference(a.double(), b.double())
bound = spec.error_bound(workload, reference, a.double(), b.double())
for name in ("torch_eager/matmul", "torch_inline/matmul:textbook" if not ON_GPU else "cupy_raw/matmul:textbook"):
    try:
        error = (opwise.implementation(name, device)(a, b).double() - reference).abs()
        print(f"{name:30} largest error {float(error.max()):.2g}, {float((error / bound).max()):.2f} of its bound")
    except BackendUnavailable as reason:
        print(f"{name:30} {reason}")

# %% [markdown]
# ## Flops a byte
# One thread an element fetches 2K numbers for 2K flops. A tile of 128x256 fetches 384 K for 65536 K: 170 times fewer bytes a flop.

# %%
cost = spec.cost(workload)
print(f"{workload}: {cost.flops} flops, {cost.bytes} bytes at least, {cost.flops / cost.bytes:.0f} flops a byte")

# %% [markdown]
# ## 25 lines
# A tile a program; `tl.dot` is what the tensor cores do. The leaky ReLU is two lines more and no byte.

# %%
try:
    probe("triton_jit", device)  # picks the compiler or, without a GPU, the interpreter
    from opwise.seeds.triton_kernels import SMALL_TILE, TILE, bound_matmul

    m = 4096 if ON_GPU else 64
    a, b = (torch.randn(m, m, device=device).half() for _ in range(2))
    out = torch.empty_like(a)
    bound_matmul(True, TILE if ON_GPU else SMALL_TILE)(a, b, out)()
    expected = torch.nn.functional.leaky_relu(a.float() @ b.float())
    library = "cuBLAS" if ON_GPU else "torch on the CPU"
    print(f"largest difference to {library} and a leaky ReLU behind it:", float((out.float() - expected).abs().max()))
except BackendUnavailable as reason:
    print(reason)

# %% [markdown]
# ## Which kernel does torch call?
# `opwise seeds kernel-names short-matmul textbook-matmul` names them on a GPU, and times the three.
