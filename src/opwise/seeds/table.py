"""EXPERIMENTS, the one list of what `opwise seeds` runs: source by source, with the figures that were published.

The sources: GPU MODE's lecture 1, CS336's lecture 6 of 2025, notes on training with one GPU, the article that introduced Triton 1.0, and
PyTorch's tutorials of its profiler and of Holistic Trace Analysis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from opwise.ops import OPS
from opwise.ops.spec import Workload
from opwise.seeds.experiment import BUILD, CHECK, COMPILE, PROFILED, TIMED, Experiment, Published

GPU_MODE = "GPU MODE, lecture 1"
CS336 = "CS336 2025, lecture 6"
TRAINING = "Single-GPU training notes"
TRITON = "Triton 1.0 article"
TUTORIALS = "PyTorch profiler and HTA tutorials"
FAULTS = "Faults of the published code"

A_BUILD = "a GPU, nvcc and a CUDA build of torch: load_inline builds a CUDA extension"
TIME_OF_A_GPU = "a GPU: there is no time of a GPU's kernel without one"


def _published(text: str, gpu: str = "", us: float | None = None, workload: str = "") -> Published:
    work = OPS[workload.split("/")[0]].cost(Workload.parse(workload)) if workload else None
    return Published(text, gpu, us, work)


def _ours(text: str, workload: str = "") -> Published:
    return replace(_published(text, workload=workload), ours=True)


SQUARES, MEANS, GELU = "square/10000x10000/float32", "mean/10000x10000/float32", "gelu/16384x16384/float32"

_ALL = (
    Experiment(
        "squares",
        GPU_MODE,
        "torch.square(x), x * x, x ** 2 by events, 10000x10000",
        "opwise.seeds.squares:timed",
        TIMED,
        needs=TIME_OF_A_GPU,
        published=_published("3.266 / 3.276 / 3.274 ms", "T4", 3266.0, SQUARES),
    ),
    Experiment(
        "squares-profiled",
        GPU_MODE,
        "the same by torch.autograd.profiler.profile: CUDA and CPU time",
        "opwise.seeds.squares:through_the_profiler",
        PROFILED,
        published=_published("CUDA 3.266 / 3.276 / 3.274 ms, CPU 10.577 / 5.417 / 6.183 ms", "T4", 3266.0, SQUARES),
    ),
    Experiment(
        "load-inline",
        GPU_MODE,
        "square_matrix by load_inline on a 2x3 tensor",
        "opwise.seeds.inline:square_matrix",
        BUILD,
        needs=A_BUILD,
        published=Published("works"),
        seconds=150.0,
    ),
    Experiment(
        "means",
        GPU_MODE,
        "mean three ways, 100 event-timed runs, 10000x10000",
        "opwise.seeds.means:timed",
        TIMED,
        needs=TIME_OF_A_GPU,
        published=_ours("alike", MEANS),
    ),
    Experiment("means-profiled", GPU_MODE, "the same in key_averages", "opwise.seeds.means:tables", PROFILED),
    Experiment("trace", GPU_MODE, "10 means as a Chrome trace", "opwise.seeds.means:trace", PROFILED, published=Published("opens")),
    Experiment(
        "triton-mean",
        GPU_MODE,
        "Triton mean, one partial sum a block, 1e6 values",
        "opwise.seeds.means:partials",
        CHECK,
        published=Published("difference printed"),
    ),
    Experiment(
        "wall-clock",
        CS336,
        "benchmark(run, warmups, trials) by the wall clock",
        "opwise.seeds.lecture6:wall_clock",
        TIMED,
        needs=TIME_OF_A_GPU,
    ),
    Experiment("stacks", CS336, "profile(run, with_stack): stacks for a flame graph", "opwise.seeds.lecture6:stacks", PROFILED),
    Experiment(
        "kernel-names",
        CS336,
        "matmul(128) and matmul(2048): which kernels",
        "opwise.seeds.products:kernel_names",
        PROFILED,
        # No limit: what it takes to start a kernel, which 4 Mflop are over before, is in no data sheet.
        published=_published("one xmma_gemm_f32 at 128: 4.992 us CUDA, 421 us CPU; others elsewhere", "H100", 4.992),
    ),
    Experiment(
        "gelu",
        CS336,
        "GELU by hand, fused, CUDA, Triton, torch.compile; 16384x16384",
        "opwise.seeds.gelu:timed",
        TIMED,
        needs=TIME_OF_A_GPU,
        published=_ours("8.1 / 1.1 / 1.8 / 1.8 ms (manual, torch, CUDA, Triton) on an H100", GELU),
        seconds=120.0,
    ),
    Experiment(
        "gelu-inline",
        CS336,
        "GELU's CUDA C++ by load_inline with a build_directory",
        "opwise.seeds.inline:gelu",
        BUILD,
        needs=A_BUILD,
        seconds=150.0,
    ),
    Experiment(
        "gelu-compiled",
        CS336,
        "is torch.compile's GELU one kernel?",
        "opwise.seeds.gelu:compiled",
        PROFILED,
        needs="a GPU: inductor makes Triton kernels for one",
        published=Published("not confirmed"),
        seconds=90.0,
    ),
    Experiment("hidden-wait", CS336, "print(loss) in a training loop", "opwise.seeds.waiting:hidden_wait", PROFILED),
    Experiment(
        "launch-blocking",
        CS336,
        "CUDA_LAUNCH_BLOCKING names the faulty kernel",
        "opwise.seeds.blocking:named",
        CHECK,
        needs="a GPU: an error must come late to be late",
        published=Published("an error names its kernel"),
        seconds=120.0,
    ),
    Experiment(
        "textbook-matmul",
        TRAINING,
        "16x16 threads, one element a thread, 1024x1024",
        "opwise.seeds.products:textbook",
        TIMED,
        needs=TIME_OF_A_GPU,
        published=_published("results match to 1e-4", workload="matmul/1024x1024x1024/float32"),
        seconds=120.0,
    ),
    Experiment("dynamo", TRAINING, "TorchDynamo and torch.compile as a backend", "opwise.seeds.training:dynamo", CHECK, seconds=90.0),
    Experiment("micro-batches", TRAINING, "a backward pass whole and in 8 parts", "opwise.seeds.training:micro_batches", TIMED),
    Experiment(
        "prefetch",
        TRAINING,
        "batches over PCIe, in turn and one ahead",
        "opwise.seeds.training:prefetch",
        TIMED,
        needs="a GPU: there is no bus to copy over without one",
    ),
    Experiment("vector-add", TRITON, "vector addition in Triton and in Numba", "opwise.seeds.addition:vectors", TIMED, seconds=90.0),
    Experiment(
        "softmax-sweep",
        TRITON,
        "fused softmax, M = 4096 over N, against torch and torch.jit.script",
        "opwise.seeds.softmax:sweep",
        TIMED,
        needs=TIME_OF_A_GPU,
        published=Published("a plot: ahead of both", "A100"),
        seconds=120.0,
    ),
    Experiment(
        "softmax-odd",
        TRITON,
        "583x931 in a masked block of 1024",
        "opwise.seeds.softmax:odd_shape",
        TIMED,
        needs=TIME_OF_A_GPU,
        published=Published("runs", "A100"),
    ),
    Experiment(
        "short-matmul",
        TRITON,
        "fp16 matmul in 25 lines, with and without a leaky ReLU",
        "opwise.seeds.products:short",
        TIMED,
        published=_published("on par with cuBLAS", "A100", workload="matmul/4096x4096x4096/float16"),
    ),
    Experiment("models", TRITON, "block-level against thread-level: lines of code", "opwise.seeds.models:lines", CHECK),
    Experiment(
        "repair",
        TUTORIALS,
        "a bottleneck found by the profiler and mended in steps",
        "opwise.seeds.repair:repaired",
        PROFILED,
        published=Published("5.931 s -> 5.347 s -> 225.8 ms; Self CPU Mem -953 MB -> -477 MB"),
    ),
    Experiment("hta", TUTORIALS, "breakdowns, launch statistics, queue length, trace diff", elsewhere="opwise timeline"),
    Experiment(
        "fault-gelu-nan",
        FAULTS,
        "the classroom Triton GELU's tanh by exp",
        "opwise.seeds.faults:gelu_nan",
        CHECK,
        published=_ours("nan above x of about 10"),
    ),
    Experiment(
        "fault-gelu-double",
        FAULTS,
        "the classroom CUDA GELU computes in double",
        "opwise.seeds.faults:gelu_double",
        COMPILE,
        cpu_lane=COMPILE,
    ),
    Experiment(
        "fault-softmax-unshifted", FAULTS, "the naive softmax does not subtract its maximum", "opwise.seeds.faults:softmax_unshifted", CHECK
    ),
    Experiment(
        "fault-mean-scalar", FAULTS, "a block mean whose loop is scalar", "opwise.seeds.faults:mean_scalar", TIMED, cpu_lane=COMPILE
    ),
    Experiment("fault-one-sample", FAULTS, "one sample a timing", "opwise.seeds.faults:one_sample", TIMED, needs=TIME_OF_A_GPU),
    Experiment("fault-no-flush", FAULTS, "no L2 flush", "opwise.seeds.faults:no_flush", TIMED, needs=TIME_OF_A_GPU),
)

EXPERIMENTS: Mapping[str, Experiment] = {e.name: e for e in _ALL}


class UnknownExperiment(ValueError):
    """A name matches no experiment or source; the message lists the known ones."""


def chosen(names: Sequence[str]) -> list[Experiment]:
    """The experiments whose name contains one of `names`, in the table's order; all if none is given. Raises UnknownExperiment."""
    for name in names:
        if not any(name in known for known in EXPERIMENTS):
            raise UnknownExperiment(f"{name!r} is no part of an experiment's name: known are {', '.join(EXPERIMENTS)}")
    exact = {name for name in names if name in EXPERIMENTS}
    parts = [name for name in names if name not in exact]
    return [e for e in _ALL if not names or e.name in exact or any(part in e.name for part in parts)]
