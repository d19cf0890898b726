"""What stands in for a GPU: which kernels each stand-in runs in the place of which, and which of the GPU's it never runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from rich.markup import escape

from opwise.backends import OURS, numba_on_cpu
from opwise.backends.cuda_on_cpu import NOT_RUN
from opwise.ops.spec import DTYPES


@dataclass(frozen=True)
class StandIn:
    """`brief`: the head of a column. `never`: op, or "" for all of them -> which of the GPU's kernels it cannot run."""

    what: str
    brief: str
    runs: str
    never: Mapping[str, str]

    def not_run(self, ops: Iterable[str]) -> tuple[str, ...]:
        """Which of the GPU's kernels of these ops it never runs."""
        ops = ("", *ops)
        return tuple(told for op, told in self.never.items() if op in ops)


# By the names that the backends' probes give. "without a GPU" in docs/checking.md has the reasons.
STAND_INS: Mapping[str, StandIn] = {
    "cpu": StandIn("torch on the CPU", "torch on a CPU", "torch's CPU kernels", {"": "its CUDA kernels, nor cuBLAS"}),
    "fibres": StandIn(
        "CUDA C++ on the CPU, a fibre a thread",
        "sm_80's kernels",
        "the GPU's own kernels, chosen by the plans of sm_80",
        {op: kernels for op, (kernels, _) in NOT_RUN.items()},
    ),
    "greenlets": StandIn(
        "Numba's kernels as Python, a greenlet a thread",
        "sm_80's kernels",
        "the GPU's own kernels, chosen by the plans of sm_80",
        numba_on_cpu.NOT_RUN,
    ),
    "interpreter": StandIn(
        "Triton's interpreter",
        "no Gluon kernel",
        "the GPU's kernels that are no Gluon, matmul's as the variant `pointers`",
        {
            "softmax": "softmax's stream_kernel, cluster_kernel",
            "matmul": "matmul's ffma_kernel, pingpong_kernel, split_kernel, TF32's persistent_kernel, pipelined_kernel, nor those by TMA",
        },
    ),
}


def stand_in_of(backend: str, name: str | None) -> StandIn | None:
    """None where it is unknown. What a stand-in leaves out is known of the suite's own kernels, and not of a package's or a file's."""
    found = STAND_INS.get(name or "")
    return found if found is None or backend in OURS else StandIn(found.what, found.what, "its kernels", {})


def stand_in_lines(backends: Mapping[str, Iterable[str]], ops: Iterable[str]) -> list[str]:
    """A line a stand-in, as markup: for which backends it stands, what it is, what it runs of these ops, and what it never runs. Packages'
    backends have one of their own."""
    ops, lines = tuple(ops), []
    groups = [(name, [x for x in of if (x in OURS) == ours]) for name, of in backends.items() for ours in (True, False)]
    for name, of in groups:
        if not of:
            continue
        found = stand_in_of(of[0], name)
        told = [f"{found.what}: runs {found.runs}", *(f"never {kernels}" for kernels in found.not_run(ops))] if found else [name]
        lines.append(f"[yellow]stand-in[/]  {escape(', '.join(of))}: {escape('; '.join(told))}")
    return lines


def brief(kernels: Iterable[str], op: str, width: int = 15) -> str:
    """Kernels of an op in a cell of a table: the first, without its op and dtype, and how many others there are."""
    common = {op, "kernel", *DTYPES}
    names = list(dict.fromkeys(next(filter(None, (_without(common, part) for part in reversed(name.split(".")))), op) for name in kernels))
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return names[0][: width - len(more)] + more if names else ""


def _without(common: Set[str], name: str) -> str:
    return "_".join(word for word in name.split("_") if word not in common)
