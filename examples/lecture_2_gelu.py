# %% [markdown]
# # GELU: fused, by hand, and wrong
# The same function in eager, CUDA C++, Triton and through torch.compile; and two faults that classroom code is known for.

# %%
import torch

import opwise
from opwise.backends import BACKENDS
from opwise.backends.protocol import BackendUnavailable
from opwise.measure.validate import judge
from opwise.ops import OPS
from opwise.ops.spec import Workload

ON_GPU = torch.cuda.is_available()
device = torch.device("cuda:0" if ON_GPU else "cpu")
workload = Workload("gelu", (8192, 8192) if ON_GPU else (33, 33), "float32")
spec = OPS["gelu"]
(x,) = spec.make_inputs(workload, device, 0)
reference = spec.reference(x.double())
bound = spec.error_bound(workload, reference, x.double())

# %% [markdown]
# ## Right?
# Every element against float64. Where there is no GPU, kernels run in a stand-in: right or wrong counts, time does not.

# %%
for backend in BACKENDS:
    try:
        out = opwise.implementation(f"{backend}/gelu", device)(x)
    except BackendUnavailable as reason:
        print(f"{backend:14} {reason}")
        continue
    verdict = judge(out, reference, bound)
    print(f"{backend:14} {'right' if verdict.ok else verdict.reason}, largest error {verdict.error_ratio:.2f} of its bound")

# %% [markdown]
# ## By hand
# `0.5 * x * (1 + tanh(...))` in eager is a kernel an operation. Each reads and writes the whole tensor: count the operators.

# %%
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from opwise.backends.torch_eager.gelu import by_hand, fused  # noqa: E402


class Counting(TorchDispatchMode):
    """Counts operators that compute."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


for function in (by_hand, fused):
    with Counting() as counting:
        function(x)
    print(f"{function.__name__}: {counting.calls} operators")

# %% [markdown]
# ## The fault above 10
# tanh a = (e^2a - 1) / (e^2a + 1) is inf / inf where e^2a overflows. 1 / (1 + e^-2a) has nothing to overflow into.

# %%
large = torch.tensor([1.0, 5.0, 10.0, 11.0, 100.0], device=device)
for name in ("triton_jit/gelu:textbook", "triton_jit/gelu"):
    try:
        print(f"{name:25} {opwise.implementation(name, device)(large).tolist()}")
    except BackendUnavailable as reason:
        print(f"{name:25} {reason}")

# %% [markdown]
# ## How fast
# `opwise seeds gelu` puts all of them beside the published figures; `opwise seeds fault-gelu` shows the double arithmetic of the CUDA one.

# %%
if ON_GPU:
    from opwise.seeds.clocks import race
    from opwise.seeds.place import Place

    raced = race(Place.on("cuda:0"), workload, ["torch_eager/gelu", "torch_eager/gelu:manual", "triton_jit/gelu"])
    for name, timing in raced.timings.items():
        print(f"{name:25} {timing.median_us / 1e3:.3f} ms")
else:
    print("a stand-in has no time: on a GPU this times fused, by hand and Triton")
