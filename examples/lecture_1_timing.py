# %% [markdown]
# # How long does `x * x` take?
# Three clocks, three answers: the wall clock, CUDA events, the profiler. Then opwise's, which flushes the L2 and takes turns.
# Without a GPU there is no time to tell: each part says what it would show, and the third shows the CPU's side.

# %%
import time

import torch
from torch.profiler import ProfilerActivity, profile

ON_GPU = torch.cuda.is_available()
device = torch.device("cuda:0" if ON_GPU else "cpu")
n = 8192 if ON_GPU else 256
x = torch.randn(n, n, device=device)

# %% [markdown]
# ## The wall clock
# A launch returns before the GPU is done: without the wait this is the time of asking, not of doing.


# %%
def wall_clock(wait: bool) -> float:
    """Seconds of one square."""
    if ON_GPU:
        torch.cuda.synchronize()
    began = time.perf_counter()
    x * x
    if wait and ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - began


wall_clock(wait=True)  # the first one loads the kernel
asked, done = wall_clock(wait=False), wall_clock(wait=True)
if ON_GPU:
    print(f"wall clock: asked for in {asked * 1e6:.0f} us, done in {done * 1e6:.0f} us")
else:
    print("wall clock: a CPU returns when it is done, so that both are one; on a GPU the first is the shorter")

# %% [markdown]
# ## Events
# The GPU takes the time itself. One sample is one sample: look at the spread. And the L2 is as the run before left it.

# %%
if ON_GPU:
    from opwise.seeds.clocks import events_us, spread
    from opwise.seeds.place import Place

    samples = events_us(Place.on("cuda:0"), lambda: x * x, runs=50)
    print(f"events: {min(samples):.1f} to {max(samples):.1f} us, a spread of {spread(samples):.0%} of the median")
else:
    print("events: they are a GPU's")

# %% [markdown]
# ## The profiler
# Which kernels ran, and what the CPU did to have them run.

# %%
with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])], acc_events=True) as profiler:
    x * x
    if ON_GPU:
        torch.cuda.synchronize()
for event in profiler.key_averages():
    print(f"{event.key[:70]:70} {event.count}")

# %% [markdown]
# ## Ours
# Launches of all candidates in turns, each from a flushed L2, until the median's interval is narrow. Two tie where the gap is under 1 %.

# %%
from opwise.ops.spec import Workload  # noqa: E402

names = ["torch_eager/square", "torch_eager/square:mul", "torch_eager/square:pow"]
if ON_GPU:
    from opwise.seeds.clocks import race

    raced = race(Place.on("cuda:0"), Workload("square", (n, n), "float32"), names)
    for name, timing in raced.timings.items():
        print(f"{name:25} {timing.median_us:8.2f} us, 95 % interval {timing.low_us:.2f} to {timing.high_us:.2f}")
    print("alike" if raced.alike(names) else "not alike")
else:
    print(f"a stand-in has no time: on a GPU this times {', '.join(names)}")
