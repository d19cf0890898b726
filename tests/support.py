"""What the tests share: the device, the candidates, awkward shapes, and the truth about a workload, computed once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

import pytest
import torch
from shapes import A_FEW, AWKWARD, TRANSPOSED
from torch import Tensor

from opwise.backends import BACKENDS, implementations, probe
from opwise.backends.protocol import BackendUnavailable, Implementation, Launch, UnsupportedWorkload
from opwise.measure.validate import Guarded, Verdict, check, judge
from opwise.ops import OPS, OpSpec, Workload
from opwise.ops.spec import DTYPES
from opwise.verifying.case import ranks

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
ON_GPU = DEVICE.type == "cuda"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="no GPU here: streams, graphs and device memory are a GPU's own")
in_stand_in = pytest.mark.skipif(ON_GPU, reason="a GPU is here: it runs these kernels itself")
interpreted = pytest.mark.skipif(
    ON_GPU, reason="with a GPU Triton is the compiler here and takes no CPU tensors: `opwise seeds` runs the same there"
)

WITHOUT = frozenset(filter(None, os.environ.get("OPWISE_TEST_WITHOUT", "").split(",")))
EVERY_VARIANT = "OPWISE_TEST_EVERY_VARIANT" in os.environ  # also those that are another one where there is no GPU
if unknown := WITHOUT - set(BACKENDS):
    raise pytest.UsageError(f"OPWISE_TEST_WITHOUT names unknown backends {sorted(unknown)}: known are {', '.join(BACKENDS)}")

# Triton is compiler or interpreter from its first import on, and torch's profiler or Dynamo may be the first to import it.
with contextlib.suppress(BackendUnavailable):
    probe("triton_jit", DEVICE)

SLOW_VARIANTS = frozenset({"compile"})  # seconds a workload: torch.compile specialises, and is asked to, on every shape
# Of the ladders in docs/kernels.md, between the textbook's kernel and the one to use: read and measured, used by nobody. A stand-in runs
# each on a few shapes alone: several tiles or steps, a last one that is not full, rows on 16 bytes and off.
RUNGS = frozenset({"shared", "registers", "vectors", "coalesced", "online", "tiles", "grouped", "passes", "tma", "persistent"})
# So do the simplest kernels of an op, and those that run there elsewhere: cupy_raw's are torch_inline's, launched by a host code of its
# own, and numba_cuda's have shapes of their own (test_numba_fibres.py). For a mutant, which may be in any of them, these run on all shapes.
SIMPLEST, RUN_BESIDE = frozenset({"plain", "textbook"}), frozenset({"numba_cuda", "cupy_raw"})
RUNS_TORCH_OPERATORS = frozenset({"torch_eager"})  # whose kernels, workspaces and strides are torch's, not ours

# Elements a workload may touch in a stand-in, so that a test stays under a second or so; a real device has no such limit.
# Triton's interpreter costs about a millisecond a program, Numba's kernels ten microseconds a thread.
STAND_IN_BUDGET = {"cpu": 1_200_000, "fibres": 400_000, "interpreter": 40_000, "greenlets": 6_500}


@dataclass(frozen=True)
class Candidate:
    """An implementation, or why there is none. Where `problem` is set, `get()` skips or fails."""

    name: str
    backend: str
    op: str
    variant: str = ""
    found: Implementation | None = field(default=None, compare=False)
    problem: Exception | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.name

    def get(self) -> Implementation:
        if self.found is not None:
            return self.found
        explained = isinstance(self.problem, BackendUnavailable)
        if explained and (not ON_GPU or self.backend in WITHOUT):
            pytest.skip(f"{self.backend}: {self.problem}")
        remedy = f"; OPWISE_TEST_WITHOUT={self.backend} leaves it out" if explained else ""
        pytest.fail(f"{self.name} cannot be tested: {type(self.problem).__name__}: {self.problem}{remedy}", pytrace=False)


@cache
def candidates() -> tuple[Candidate, ...]:
    """Every implementation of every op in every backend, and one entry for each backend that is missing here."""
    return tuple(candidate for backend in BACKENDS for op in OPS for candidate in _of(backend, op))


def _of(backend: str, op: str) -> Iterator[Candidate]:
    try:
        found = implementations(backend, op, DEVICE.type)
    except Exception as problem:  # a broken backend must fail its own tests, not the collection of all
        yield Candidate(f"{backend}/{op}", backend, op, problem=problem)
        return
    for variant, implementation in found.items():
        yield Candidate(implementation.name, backend, op, variant, implementation)


def right_candidates() -> list[Candidate]:
    return [c for c in candidates() if (c.found is None or c.found.source.fault is None) and not is_another_here(c)]


def quick_candidates() -> list[Candidate]:
    """Those of which many tests can be made here."""
    return [c for c in right_candidates() if c.variant not in SLOW_VARIANTS and (ON_GPU or EVERY_VARIANT or c.variant not in RUNGS)]


def our_candidates() -> list[Candidate]:
    """The kernels to use of each backend that has its own."""
    return [c for c in quick_candidates() if c.backend not in RUNS_TORCH_OPERATORS and not c.variant]


def is_another_here(candidate: Candidate) -> bool:
    """Once is enough, unless a mutant asks for it. Triton's interpreter runs the kernels for pointers as the unnamed variant, `pointers`
    and `invariant`; the stand-ins of CUDA C++ and of Numba are an sm_80, whose unnamed products are `mma`'s, and Numba's `invariant` other
    tiles of the same; that of CUDA C++ holds the variants of both its backends once: of cupy_raw the unnamed ones run there."""
    again = {
        "numba_cuda": ("mma", "invariant"),
        "triton_jit": ("pointers", "invariant"),
        "torch_inline": ("mma",),
        "cupy_raw": (candidate.variant,),
    }
    return bool(candidate.variant) and candidate.variant in again.get(candidate.backend, ()) and not (ON_GPU or EVERY_VARIANT)


def faulty_candidates() -> list[Candidate]:
    return [c for c in candidates() if c.found is not None and c.found.source.fault is not None]


def stand_in(backend: str) -> str | None:
    return probe(backend, DEVICE).stand_in


def affordable(candidate: Candidate, workload: Workload, *, times: int = 1) -> bool:
    """Is the workload small enough for what runs the kernels here? `times` its budget, where it is of few blocks and long loops."""
    if ON_GPU or candidate.found is None:
        return True
    name = (stand_in(candidate.backend) or "cpu").lower()
    budget = times * next((limit for key, limit in STAND_IN_BUDGET.items() if key in name), min(STAND_IN_BUDGET.values()))
    spec, cost = OPS[workload.op], OPS[workload.op].cost(workload)
    return max(cost.bytes // workload.torch_dtype.itemsize, cost.flops // 16 if len(spec.inputs) > 1 else 0) <= budget


def awkward_workloads(spec: OpSpec, dtype: str) -> list[Workload]:
    return [Workload(spec.name, shape, dtype) for rank in ranks(spec) for shape in AWKWARD[rank]]


def few_shapes(candidate: Candidate) -> bool:
    again = candidate.variant in SIMPLEST or candidate.backend in RUN_BESIDE
    return not ON_GPU and (candidate.variant in RUNGS or (again and not EVERY_VARIANT))


def workloads_for(candidate: Candidate, dtype: str) -> list[Workload]:
    """Awkward ones that are affordable here; of a slow variant, one on a CPU and the smoke set on a GPU; of some, few in a stand-in."""
    spec = OPS[candidate.op]
    if candidate.variant in SLOW_VARIANTS:
        smoke = [w for w in spec.workloads["smoke"] if w.dtype == dtype]
        return smoke if ON_GPU else smoke[-1:] if dtype == spec.dtypes[0] else []
    if few_shapes(candidate):
        shapes = [shape for rank in ranks(spec) for shape in A_FEW[rank]]
        return [w for shape in shapes if affordable(candidate, w := Workload(spec.name, shape, dtype))]
    return [w for w in awkward_workloads(spec, dtype) + transposed_workloads(candidate, dtype) if affordable(candidate, w)]


def transposed_workloads(candidate: Candidate, dtype: str) -> list[Workload]:
    """Products of transposed factors, each shape in every layout that the variant takes."""
    spec = OPS[candidate.op]
    if candidate.found is None or not candidate.found.source.takes_transposed:
        return []
    return [Workload(spec.name, shape, dtype, layout) for shape in TRANSPOSED for layout in spec.layouts if layout]


def kinds_in_turns(dtype: str, place: int) -> tuple[str, ...]:
    """Kinds of inputs for the workload at a place among others: on a GPU and for a mutant all, else one, of which the next dtype has the
    other."""
    kinds = tuple(INPUT_KINDS)
    return kinds if ON_GPU or EVERY_VARIANT else (kinds[(place + [*DTYPES].index(dtype)) % len(kinds)],)


def by_dtype(found: list[Candidate]) -> list[tuple[Candidate, str]]:
    """Pairs for parametrize; a slow variant in its first dtype only where there is no GPU."""
    return [
        (c, dtype) for c in found for dtype in OPS[c.op].dtypes if ON_GPU or c.variant not in SLOW_VARIANTS or dtype == OPS[c.op].dtypes[0]
    ]


def small_workload(spec: OpSpec, dtype: str) -> Workload:
    """A workload with several rows, no power of two in it, that every stand-in can afford."""
    return max((w for w in spec.workloads["smoke"] if w.dtype == dtype and spec.cost(w).flops < 25_000), key=lambda w: spec.cost(w).bytes)


def workload_for(candidate: Candidate, dtype: str) -> Workload:
    return small_workload(OPS[candidate.op], dtype)


INPUT_KINDS: dict[str, Callable[[OpSpec], Callable[[Workload, torch.device, int], tuple[Tensor, ...]]]] = {
    "normal": lambda spec: spec.make_inputs,
    "hard": lambda spec: spec.hard_inputs,
}


@dataclass(frozen=True)
class Truth:
    inputs: tuple[Tensor, ...]
    reference: Tensor
    bound: Tensor


@lru_cache(maxsize=48)
def truth(workload: Workload, kind: str, seed: int = 0) -> Truth:
    """Inputs on DEVICE, nan around them, with their float64 reference and bound. Shared by tests: nobody writes to them."""
    spec = OPS[workload.op]
    return truth_of(workload, *map(guarded_copy, INPUT_KINDS[kind](spec)(workload, DEVICE, seed)))


def truth_of(workload: Workload, *inputs: Tensor) -> Truth:
    spec = OPS[workload.op]
    wide = tuple(x.double() for x in inputs)
    reference = spec.reference(*wide)
    return Truth(inputs, reference, spec.error_bound(workload, reference, *wide))


def worst_error(out: Tensor, workload: Workload, *inputs: Tensor) -> float:
    """The largest error over its bound, as a run's verdict has it: inf where a nan or an inf is out of place."""
    known = truth_of(workload, *inputs)
    return judge(out, known.reference, known.bound).error_ratio


def check_candidate(candidate: Candidate, workload: Workload, known: Truth, *, offset: int = 0) -> Verdict:
    """check() under the workload's precision. Raises UnsupportedWorkload where the implementation refuses."""
    implementation = candidate.get()
    with workload.precision():
        return check(implementation.prepare, known.inputs, known.reference, known.bound, offset=offset)


def explained(candidate: Candidate, refusal: UnsupportedWorkload) -> str:
    """The reason of a refusal, which a named variant may give and the unnamed one, which stands for the op, may not."""
    assert str(refusal), "an UnsupportedWorkload must say why"
    assert candidate.variant, f"{candidate} is the one to use and refuses: {refusal}"
    return str(refusal)


class Tally:
    """Runs many workloads in one test and reports every failure, not the first. A workload refused with a reason is counted."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.ran = candidate, 0
        self.refused: list[str] = []
        self.failures: list[str] = []

    def check(self, workload: Workload, known: Truth, *, offset: int = 0, note: str = "") -> None:
        try:
            verdict = check_candidate(self.candidate, workload, known, offset=offset)
        except UnsupportedWorkload as refusal:
            self.refused.append(explained(self.candidate, refusal))
            return
        self.ran += 1
        if not verdict.ok:
            self.failures.append(f"{workload} {note}: {verdict.reason} (ratio {verdict.error_ratio:.3g})")

    def close(self) -> None:
        if self.failures:
            pytest.fail(f"{self.candidate}, {len(self.failures)} of {self.ran}:\n" + "\n".join(self.failures), pytrace=False)
        if not self.ran:
            pytest.skip(f"{self.candidate} ran nothing: {self.refused[0] if self.refused else 'all too large for its stand-in'}")


def anew(candidate: Candidate) -> Tally:
    """What was built before serves no more."""
    found = candidate.get()
    return Tally(replace(candidate, found=Implementation(found.backend, found.op, found.variant, found.source, found.device_type)))


def alone(what: str) -> pytest.MarkDecorator:
    """For tests that time."""
    beside = "PYTEST_XDIST_WORKER" in os.environ
    return pytest.mark.skipif(beside, reason=f"other workers use the {what} meanwhile: `make test` runs this file alone")


def gpu_alone(why: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skipif(not ON_GPU, reason=f"no GPU here: {why}"), alone("GPU")]


EXTRAS = {"asv": "asv", "asv_runner": "asv", "hta": "timeline", "jinja2": "report", "matplotlib": "report", "mkdocs": "docs"}
EXTRAS |= {"playwright.sync_api": "test", "plotly": "report"}


def needs(*modules: str) -> None:
    """Skips the test, or the file whose first lines ask for it, where one of them is not installed."""
    for module in modules:
        extra = EXTRAS.get(module, "cuda12 or cuda13")
        pytest.importorskip(module, reason=f"{module} is not installed: it comes with opwise's extra {extra}")


@contextlib.contextmanager
def or_skip(missing: type[Exception] = BackendUnavailable, of: str = "") -> Iterator[None]:
    """Skips the test where what it needs turns out to be missing, with the reason that is told."""
    try:
        yield
    except missing as problem:
        pytest.skip(f"{of}: {problem}" if of else str(problem))


def guarded_copy(x: Tensor, offset: int = 0) -> Tensor:
    """The same values `offset` elements off alignment, with bytes 0xFF around them: nan to any kernel that reads past the ends. Of a
    transpose the transpose of such a copy."""
    if x.ndim == 2 and not x.is_contiguous():
        return guarded_copy(x.t(), offset).t()
    copy = Guarded(x.shape, x.dtype, x.device, offset=offset, guard=0xFF).tensor
    copy.copy_(x)
    return copy


def bits(x: Tensor) -> Tensor:
    """The tensor's bytes, so that nan equals nan and -0 differs from 0."""
    return x.contiguous().view(-1).view(torch.uint8)


def bound_launch(candidate: Candidate, inputs: tuple[Tensor, ...], out: Tensor) -> Launch:
    """Launched once already, so that no module is left to load; a refusal skips the test with its reason."""
    try:
        launch = candidate.get().prepare(*inputs, out=out)
    except UnsupportedWorkload as refusal:
        pytest.skip(f"{candidate} refuses: {explained(candidate, refusal)}")
    launch()
    if ON_GPU:
        torch.cuda.synchronize(out.device)
    return launch


def launch_once(candidate: Candidate, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Launch]:
    """(output, launch) of a candidate, in an output that was nan before."""
    out = OPS[candidate.op].empty_output(*inputs).fill_(float("nan"))
    return out, bound_launch(candidate, inputs, out)


def taken_workload(candidate: Candidate) -> Workload:
    """The first small workload that the candidate does not refuse: of rows that begin anywhere, else on 16 bytes."""
    spec = OPS[candidate.op]
    small = [small_workload(spec, dtype) for dtype in spec.dtypes]
    for workload in (*small, *(replace(w, shape=tuple(-(-n // 8) * 8 for n in w.shape)) for w in small)):
        inputs = truth(workload, "normal").inputs
        try:
            candidate.get().prepare(*inputs, out=spec.empty_output(*inputs))
        except UnsupportedWorkload:
            continue
        return workload
    pytest.fail(f"{candidate} refuses every dtype", pytrace=False)


def taken_dtype(candidate: Candidate) -> str:
    return taken_workload(candidate).dtype
