# %% [markdown]
# # Softmax: five kernels or one
# Five lines in eager move each element eight times. One row a program moves it twice.

# %%
import torch

import opwise
from opwise.backends.protocol import BackendUnavailable
from opwise.backends.torch_eager.softmax import by_hand, unshifted
from opwise.ops import OPS
from opwise.ops.spec import Workload

ON_GPU = torch.cuda.is_available()
device = torch.device("cuda:0" if ON_GPU else "cpu")

# %% [markdown]
# ## Why the maximum is subtracted
# e^x overflows float32 above 88.7. The naive code computes the maximum, and then forgets it.

# %%
row = torch.tensor([[1.0, 50.0, 88.0], [1.0, 50.0, 100.0]], device=device)
print("unshifted", unshifted(row).tolist())
print("shifted  ", by_hand(row).tolist())

# %% [markdown]
# ## What has to move
# Reading and writing each element once is the least that can be moved, and the limit that opwise holds a kernel against.

# %%
workload = Workload("softmax", (4096, 4096) if ON_GPU else (5, 931), "float32")
rows, columns = workload.shape
cost = OPS["softmax"].cost(workload)
print(f"{workload}: {cost.bytes} bytes at least; by hand {4 * (8 * rows * columns + 4 * rows)} bytes")

# %% [markdown]
# ## One row a program
# The odd shape of the Triton article, 931 columns in a masked block of 1024; in the interpreter where there is no GPU.

# %%
x = torch.randn(583 if ON_GPU else 5, 931, device=device)
try:
    y = opwise.implementation("triton_jit/softmax:plain", device)(x)
    print("largest difference to torch:", float((y - torch.softmax(x, dim=-1)).abs().max()))
except BackendUnavailable as reason:
    print(reason)

# %% [markdown]
# ## How fast, over N
# `opwise seeds softmax-sweep --plot plots` draws the article's plot of this GPU. Here are three sizes of it.

# %%
if ON_GPU:
    from opwise.seeds.clocks import race
    from opwise.seeds.place import Place

    for columns in (512, 2048, 8192):
        workload = Workload("softmax", (4096, columns), "float32")
        raced = race(Place.on("cuda:0"), workload, ["triton_jit/softmax", "torch_eager/softmax", "torch_eager/softmax:script"])
        speed = {name: OPS["softmax"].cost(workload).bytes / timing.median_us / 1e3 for name, timing in raced.timings.items()}
        print(columns, ", ".join(f"{name} {value:.0f} GB/s" for name, value in speed.items()))
else:
    print("a stand-in has no speed: on a GPU this times Triton, torch and the scripted five lines at three sizes")
