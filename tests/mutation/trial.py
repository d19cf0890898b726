"""One trial: what the suite runs on one implementation, until something notices. The process's last line says what came of it.

    PYTHONPATH=copy/src:tests python -m mutation.trial '{"backend": "triton_jit", "op": "softmax", "variant": "", "dtypes": []}'

It calls the suite's own tests as functions, quickest first: the smoke workloads as `opwise check` takes them, then awkward shapes,
unaligned storage, special values, strides, the protocol and, on a GPU, streams and graphs. On the CPU and on a GPU it is the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pytest
import support
import torch
from support import INPUT_KINDS, ON_GPU, SLOW_VARIANTS, Candidate, Tally

from mutation.faults import Outcome
from opwise.backends.protocol import BackendUnavailable
from opwise.ops import OPS

# Modules of the suite, and their tests that take an implementation; what is left out cannot tell a kernel's fault.
SUITE = {
    "test_implementations": (
        *("test_right_on_awkward_shapes", "test_storage_may_begin_off_alignment", "test_special_values_follow_the_reference"),
        *("test_short_rows_as_those_of_large_tensors", "test_long_rows_also_of_few_finite_elements"),
        *("test_scratch_may_hold_anything", "test_strided_inputs_are_right_or_refused"),
        *("test_sums_of_blocks_may_be_any_number", "test_right_on_many_seeds"),
    ),
    "test_protocol": (
        *("test_the_call_is_the_launch_with_an_output_of_its_own", "test_a_launch_reads_the_callers_memory_when_it_runs"),
        *("test_one_build_serves_other_addresses", "test_a_launch_keeps_its_tensors_alive", "test_a_strided_output_is_right_or_refused"),
    ),
}
SUITE_ON_GPU = {
    "test_on_gpu": (
        *("test_a_launch_goes_to_the_current_stream_and_waits_for_nothing", "test_long_rows_again_and_again"),
        "test_a_call_goes_to_the_current_stream",
        *("test_a_captured_launch_computes_with_what_is_there_at_replay", "test_calls_on_two_streams_at_once_share_no_scratch"),
    )
}
SUITE_OF = {  # kernels that the plan may not take, and what no small shape reaches
    "triton_jit": {"test_triton_descriptors": ("test_right_through_descriptors",), "test_mean_steps": ("test_long_programs",)}
}
SUITE_WITHOUT_GPU = {  # what no small shape reaches in a stand-in
    "numba_cuda": {
        "test_numba_fibres": ("test_right_in_fibres", "test_short_rows_in_fibres"),
        "test_mean_steps": ("test_long_blocks_in_fibres",),
    },
    "cupy_raw": {"test_mean_steps": ("test_long_blocks",)},
    "torch_inline": {"test_mean_steps": ("test_long_blocks",)},
}
ALSO_ON_GPU = ("mma",)  # what the unnamed variant is on other GPUs: faults are planted in its kernels too
# Errors of a fault that is no fault but nonsense: it must be mended, and does not count as noticed.
NONSENSE = (SyntaxError, NameError, ImportError, AttributeError)
NONSENSE_NAMES = frozenset({"CompilationError", "UnsupportedLanguageConstruct", "TypingError", "LoweringError"})
COMPILERS_SAY = (" refuses ", "cannot preprocess", "Error building extension")


def run(backend: str, op: str, variant: str, dtypes: list[str]) -> Outcome:
    support.BACKENDS = {backend: support.BACKENDS[backend]}  # no other backend is looked at
    _narrowed(backend, op, dtypes)
    if dtypes:
        support.taken_dtype = lambda candidate: dtypes[0]  # what tests of one dtype take
        support.taken_workload = lambda candidate: support.small_workload(OPS[candidate.op], dtypes[0])
    _hasty()
    variants = (variant, *(ALSO_ON_GPU if ON_GPU and not variant else ()))
    found = [c for c in support.candidates() if c.op == op and (c.found is None or c.variant in variants)]
    if not found:
        return Outcome("nonsense", reason=f"{backend}/{op} has no variant {variant!r}")
    candidate = found[0]
    if isinstance(candidate.problem, BackendUnavailable):
        return Outcome("absent", reason=str(candidate.problem))
    if candidate.problem is not None:
        return Outcome("nonsense", reason=f"import: {type(candidate.problem).__name__}: {candidate.problem}")
    ran, reasons = 0, []
    for name, test in itertools.chain(*(_tests(c, dtypes or list(OPS[op].dtypes)) for c in found)):
        try:
            test()
            ran += 1
        except pytest.skip.Exception as skipped:
            reasons.append(str(skipped))
        except pytest.fail.Exception as failure:
            return Outcome("noticed", name, _brief(str(failure)))
        except AssertionError as failure:
            return Outcome("noticed", name, _brief(str(failure) or "an assertion"))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if "has no stand-in" in said or type(error).__name__ == "Unsupported":  # the C++ stand-in knows what it does not know
                return Outcome("absent", name, _brief(said))
            bad = (
                (isinstance(error, NONSENSE) and "undefined symbol" not in said)
                or type(error).__name__ in NONSENSE_NAMES
                or any(words in said for words in COMPILERS_SAY)
            )
            return Outcome("nonsense" if bad else "noticed", name, _brief(said))
    return Outcome("survived", reason=f"{ran} tests") if ran else Outcome("absent", reason="; ".join(sorted(set(reasons))))


def _tests(candidate: Candidate, dtypes: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    """(name, call) of all that the suite asks of a candidate."""
    yield "smoke workloads", lambda: _smoke(candidate, dtypes)
    for own in (SUITE_OF, {} if ON_GPU else SUITE_WITHOUT_GPU):
        if not candidate.variant:
            yield from _of(own.get(candidate.backend, {}), candidate, dtypes)
    yield from _of(SUITE, candidate, dtypes)
    if ON_GPU:
        yield from _of(SUITE_ON_GPU, candidate, dtypes)


def _of(suite: dict[str, tuple[str, ...]], candidate: Candidate, dtypes: list[str]) -> Iterator[tuple[str, Callable[[], None]]]:
    for module, names in suite.items():
        for name in names:
            test = getattr(importlib.import_module(module), name)
            for case in _cases(test):
                if case["candidate"] == candidate and case.get("dtype", dtypes[0]) in dtypes:
                    told = [str(value) for key, value in case.items() if key != "candidate"]
                    yield " ".join([name, *told]), _call(test, case)


def _cases(test: Any) -> Iterator[dict[str, Any]]:
    """The arguments that the suite calls a test with: its marks say so."""
    axes = []
    for mark in (mark for mark in test.pytestmark if mark.name == "parametrize"):
        names, values = mark.args
        one = isinstance(names, str)
        axes.append([{names: value} if one else dict(zip(names, value, strict=True)) for value in values])
    for choice in itertools.product(*axes):
        yield {key: value for part in choice for key, value in part.items()}


def _call(test: Callable[..., None], arguments: dict[str, Any]) -> Callable[[], None]:
    def call() -> None:
        torch.set_float32_matmul_precision("highest")
        with pytest.MonkeyPatch.context() as patch:
            fixtures = {"monkeypatch": patch} if "monkeypatch" in inspect.signature(test).parameters else {}
            test(**arguments, **fixtures)

    return call


def _smoke(candidate: Candidate, dtypes: list[str]) -> None:
    """As `opwise check`: the smoke set, ordinary inputs and hard ones."""
    tally = Tally(candidate)
    for workload in OPS[candidate.op].workloads["smoke"]:
        if workload.dtype in dtypes and not (candidate.variant in SLOW_VARIANTS and not ON_GPU):
            for kind in INPUT_KINDS:
                if support.affordable(candidate, workload):
                    tally.check(workload, support.truth(workload, kind, 41), note=kind)
    tally.close()


def _hasty() -> None:
    """A tally fails at its first failure: one is enough here."""
    whole = Tally.check

    def check(self: Tally, *arguments: Any, **named: Any) -> None:
        whole(self, *arguments, **named)
        if self.failures:
            self.close()

    Tally.check = check  # type: ignore[method-assign]


def _narrowed(backend: str, op: str, dtypes: list[str]) -> None:
    """A compiler is given what this op needs and nothing else: all units together take it minutes."""
    if ON_GPU and backend == "torch_inline":
        extension = importlib.import_module("opwise.backends.torch_inline.extension")
        every = extension.units
        extension.units = lambda arch: _wanted(every(arch), op, dtypes)
    elif not ON_GPU and backend in ("torch_inline", "cupy_raw") and importlib.util.find_spec("opwise.backends.cuda_on_cpu"):
        suite = importlib.import_module("opwise.backends.cuda_on_cpu.suite")
        suite.UNITS = _wanted(suite.UNITS, op, dtypes)


def _wanted(units: Mapping[str, str], op: str, dtypes: list[str]) -> dict[str, str]:
    """Of an op of one unit that one; of matmul, which has one a dtype, one of transposed factors and one for Hopper's 16-bit kernels, those
    of the dtypes."""
    also = {"float16": "wgmma", "bfloat16": "wgmma", "tfloat32": "float32"}  # a product in TF32 of one column is one of float32
    names = {f"{op}_{part}{name}" for dtype in dtypes for name in (dtype, also.get(dtype, dtype)) for part in ("", "transposed_")}
    return {name: text for name, text in units.items() if name == op or (name.startswith(f"{op}_") and (not dtypes or name in names))}


def _brief(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[1:2] or lines[:1])[:300] if lines else ""


if __name__ == "__main__":
    if not ON_GPU:
        torch.set_num_threads(1)
    sys.stdout.write(json.dumps(asdict(run(**json.loads(sys.argv[1])))) + "\n")
