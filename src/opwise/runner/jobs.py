"""The list of picklable jobs. A job is one workload with every implementation to compare on it, because times are compared only if they are
interleaved in one process on one GPU."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opwise.backends import BACKENDS
from opwise.ops import OPS
from opwise.ops.spec import DTYPES, Workload

SETS = ("smoke", "seed", "core", "sweep", "grid", "layers", "random", "bars")  # the last is of `opwise bars`, the others are the ops' own


@dataclass(frozen=True)
class Job:
    """One workload, the implementations to compare on it (`triton_jit/softmax`), and what to measure.

    `brief`: only cold kernel times and call costs, from fewer samples: for sweeps that are repeated commit after commit, and for the
    figures that a choice interpolates."""

    workload: Workload
    implementations: tuple[str, ...]
    device: str
    timed: bool = True
    brief: bool = False

    def without(self, names: Iterable[str]) -> Job:
        gone = set(names)
        return replace(self, implementations=tuple(n for n in self.implementations if n not in gone))


@dataclass(frozen=True)
class Entry:
    """A backend on this machine: its versions, or why it is missing; and its variants of each op."""

    backend: str
    versions: Mapping[str, str] = field(default_factory=dict)
    stand_in: str | None = None
    reason: str = ""
    remedy: str = ""
    variants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # op -> variant -> summary
    faults: Mapping[str, str] = field(default_factory=dict)  # implementation name -> its known fault
    compiles: bool = False  # can it compile without a GPU?
    own: bool = False  # a user's file, given with --with: all its variants are asked for
    broken: str = ""  # the status of its cells, where importing it alone failed or timed out

    @property
    def available(self) -> bool:
        return not self.reason


class UnknownName(ValueError):
    """A filter matches nothing; the message lists the known names and the nearest."""


def plan(
    catalogue: Mapping[str, Entry], filters: Sequence[str], set_name: str, device: str, *, variants: bool = False, timed: bool = True,
    brief: bool = False, facts: bool = False,
) -> list[Job]:  # fmt: skip
    """The jobs of a run, op by op in the order of OPS. An unavailable backend keeps its unnamed variant, so that it shows as missing.

    On each op's first workload the variants `plain` are timed too; their launch and call costs are those of a user of the library itself.
    facts: adds the variants `invariant`.

    Raises UnknownName for a filter that matches no implementation and no workload of any set."""
    names = {op: _implementations(catalogue, op) for op in OPS}
    candidates = workloads_of(set_name, filters)
    sorted_filters = _sort_filters(filters, names, candidates, _unseen(catalogue))
    own = {name for name, entry in catalogue.items() if entry.own}
    jobs: list[Job] = []
    for workload in candidates:
        with_plain = timed and not brief and all(job.workload.op != workload.op for job in jobs)
        beside = [":plain"] * with_plain + [":invariant"] * facts
        asked = {n for n in names[workload.op] if variants or n.split("/")[0] in own or n.endswith(tuple(beside))}
        kept = [n for n in names[workload.op] if _wanted(n, workload, sorted_filters, n in asked)]
        if kept:
            jobs.append(Job(workload, tuple(kept), device, timed, brief))
    return jobs


def _implementations(catalogue: Mapping[str, Entry], op: str) -> list[str]:
    found = []
    for backend, entry in catalogue.items():
        for variant in entry.variants.get(op, {"": ""} if not entry.available and not entry.own else {}):
            found.append(f"{backend}/{op}" + (f":{variant}" if variant else ""))
    return found


def workloads_of(set_name: str, filters: Sequence[str]) -> list[Workload]:
    """The set's workloads, and those that a filter spells out in full, in a set or not."""
    found = _of_bars() if set_name == "bars" else [w for spec in OPS.values() for w in spec.workloads.get(set_name, ())]
    for text in filters:
        try:
            workload = Workload.parse(text)
        except ValueError:
            continue
        if workload.op in OPS and workload not in found:
            found.append(workload)
    return found


def _of_bars() -> list[Workload]:
    """Looked for only where they are asked for: asv runs this over old commits' ops, which need not have what the bars speak of."""
    from opwise.bars.table import WORKLOADS

    return list(WORKLOADS)


def _matches(text: str, name: str) -> bool:
    """Is `text` the name, a glob over it, or a run of its parts?"""
    if fnmatch.fnmatchcase(name, text):
        return True
    parts, wanted = name.replace(":", "/").split("/"), text.replace(":", "/").split("/")
    spans = range(len(parts) - len(wanted) + 1)
    return any(all(fnmatch.fnmatchcase(p, w) for p, w in zip(parts[i:], wanted, strict=False)) for i in spans)


def _fits(text: str, workload: Workload) -> bool:
    """A workload that is spelled out is that one alone: of a row-major product's name a transposed one's is the beginning."""
    return text == str(workload) if _is_workload(text) else _matches(text, str(workload))


def _sort_filters(
    filters: Sequence[str], names: Mapping[str, list[str]], candidates: Sequence[Workload], unseen: str = ""
) -> dict[str, list[str]]:
    """Filters of one kind widen each other, of two kinds narrow each other: `softmax gelu triton_jit` is two ops in one backend.
    unseen: what an error says besides of a filter that may name a variant."""
    implementations = [n for group in names.values() for n in group]
    workloads = [str(w) for spec in OPS.values() for group in spec.workloads.values() for w in group] + [str(w) for w in candidates]
    by_kind: dict[str, list[str]] = {}
    for text in filters:
        if text in OPS:
            kind = "op"
        elif any(_matches(text, n) for n in implementations):
            kind = "implementation"
        elif any(_matches(text, w) for w in workloads) or _is_workload(text):
            kind = "workload"
        else:
            raise UnknownName(_unknown(text, implementations, unseen))
        by_kind.setdefault(kind, []).append(text)
    return by_kind


def _is_workload(text: str) -> bool:
    try:
        return Workload.parse(text).op in OPS
    except ValueError:
        return False


def _wanted(name: str, workload: Workload, filters: Mapping[str, list[str]], variants: bool) -> bool:
    ops, by_name, by_workload = filters.get("op"), filters.get("implementation"), filters.get("workload")
    if ops and workload.op not in ops:
        return False
    if by_workload and not any(_fits(text, workload) for text in by_workload):
        return False
    if by_name and not any(_matches(text, name) for text in by_name):
        return False
    spelled_out = any(":" in text for text in by_name or ())
    return variants or spelled_out or ":" not in name


def _unseen(catalogue: Mapping[str, Entry]) -> str:
    """Of which backends no variant is known, and why: a mistake in the file that has the variant is one reason."""
    return "".join(f". No variant of {name} is known here: {entry.reason}" for name, entry in catalogue.items() if not entry.available)


def _unknown(text: str, implementations: list[str], unseen: str = "") -> str:
    known = [*OPS, *BACKENDS, *DTYPES]
    near = difflib.get_close_matches(text, [*known, *implementations], n=3, cutoff=0.5)
    hint = f" (nearest: {', '.join(near)})" if near else ""
    return (
        f"{text!r} names no implementation and no workload{hint}. Known ops: {', '.join(OPS)}; backends: {', '.join(BACKENDS)}; "
        f"dtypes: {', '.join(DTYPES)}; or spell one out, as triton_jit/softmax, torch_eager/square:pow or softmax/4096x4096/float16"
        + (unseen if ":" in text else "")
    )
