"""What the gate decides: is a figure worse, by more than is allowed and by more than chance? And of which can nothing be said?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gate_summary import BOTH_LACK, TIMED, Change, Verdict

# What is not judged: errors are drawn from fresh inputs each time. One above its bound is a failure, and that is judged.
JUDGED = r"track_(kernel_cold|kernel_capped|call_cost|extra_bytes|registers|spill_bytes|instructions)\b"
# Of 195 kernels' times none had quartiles this far apart in any of seven sweeps of an H200 that did nothing else, 30 of 75 in one beside
# which another process ran.
WIDE, WIDE_SHARE = 0.10, 0.02
BACKEND = re.compile(r"\('\w+'")
YARDSTICK = "torch_eager"


class Unjudged(Exception):
    """Nothing can be said: why, and what to do."""


@dataclass(frozen=True)
class Figure:
    """One value of one commit: None failed, nan was skipped. `samples` and `stats` as asv keeps them."""

    value: float | None
    stats: Mapping[str, Any] | None = None
    samples: Sequence[float] | None = None

    @property
    def failed(self) -> bool:
        return self.value is None

    @property
    def skipped(self) -> bool:
        return self.value is not None and math.isnan(self.value)

    def scaled(self, by: float) -> Figure:
        if self.value is None or not self.stats:
            return self
        stats = {**self.stats, **{end: self.stats[end] * by for end in ("ci_99_a", "ci_99_b") if end in self.stats}}
        return Figure(self.value * by, stats, [x * by for x in self.samples] if self.samples else None)


def threshold(name: str, thresholds: Mapping[str, float]) -> float:
    """The largest of those whose pattern fits, as asv takes it; 5 % where none does."""
    return max((share for pattern, share in thresholds.items() if re.match(pattern, name)), default=0.05)


def change(before: Figure, after: Figure, share: float) -> str:
    """What became of a figure: "worse", "better", "" (the same within `share`, or by chance), "fails now", "works now"."""
    if before.skipped or after.skipped or (before.failed and after.failed):
        return ""
    if before.value is None or after.value is None:
        return "works now" if before.failed else "fails now"
    if after.value > before.value * (1 + share) and _differ(before, after):
        return "worse"
    return "better" if before.value > after.value * (1 + share) and _differ(before, after) else ""


def _differ(a: Figure, b: Figure) -> bool:
    from asv import _stats

    if not (a.stats and b.stats):  # a count, not a measurement: any difference is one
        return True
    return bool(_stats.is_different(a.samples, b.samples, a.stats, b.stats))


def disturbed(figures_: Mapping[str, Figure]) -> list[str]:
    """Names of the kernels' times that scatter as they do where something else uses the GPU; empty where they are too few to say so."""
    timed = {n: f for n, f in figures_.items() if "track_kernel_cold(" in n and f.value and f.stats and not f.skipped}
    wide = [n for n, f in timed.items() if f.stats and f.value and f.stats["q_75"] - f.stats["q_25"] > WIDE * f.value]
    return wide if len(wide) > WIDE_SHARE * len(timed) else []


def beside_the_yardstick(before: Mapping[str, Figure], after: Mapping[str, Figure]) -> dict[str, Figure]:
    """`after`, its times as they would be had torch eager's time of the same op, shape and dtype not moved since `before`.

    No commit changes eager's kernels, so that its own times are no verdict on one and are left out.
    """
    judged: dict[str, Figure] = {}
    for name, figure in after.items():
        yardstick = BACKEND.sub(f"('{YARDSTICK}'", name, count=1)
        if not TIMED.search(name):
            judged[name] = figure
        elif name != yardstick:
            then, now = before.get(yardstick), after.get(yardstick)
            known = then is not None and now is not None and bool(then.stats and now.stats)
            judged[name] = figure.scaled(then.value / now.value) if known else figure  # type: ignore[union-attr,operator]
    return judged


def figures(conf: Any, commit: str) -> dict[str, Figure]:
    """ "softmax.Softmax.track_kernel_cold('triton_jit', …)" -> figure, of every judged benchmark that was run."""
    from asv.commands.compare import unroll_result
    from asv.machine import iter_machine_files
    from asv.results import iter_results_for_machine_and_hash
    from asv.util import load_json

    found: dict[str, Figure] = {}
    for path in iter_machine_files(conf.results_dir):
        for result in iter_results_for_machine_and_hash(conf.results_dir, load_json(path)["machine"], commit):
            for key in filter(re.compile(JUDGED).search, result.get_all_result_keys()):
                params = result.get_result_params(key)
                columns = (
                    result.get_result_value(key, params),
                    result.get_result_stats(key, params),
                    result.get_result_samples(key, params),
                )
                found |= {name: Figure(*rest) for name, *rest in unroll_result(key, params, *columns)}
    return found


def judged(base: str, head: str, before: Mapping[str, Figure], after: Mapping[str, Figure], thresholds: Mapping[str, float]) -> Verdict:
    """Unjudged where base has no figure, or head neither a figure nor a failure: a head that fails everywhere is worse."""
    for name, found in ((base, before), (head, after)):
        if not any(not f.skipped and (found is after or not f.failed) for f in found.values()):
            failed = sum(1 for f in found.values() if f.failed)
            raise Unjudged(
                f"{name} gave no figure: {failed} cells failed, {len(found) - failed} are n/a. "
                "Mend what asv prints above, or ask for more by --bench"
            )
    scaled = beside_the_yardstick(before, after)
    left: dict[str, list[str]] = {}
    for name in sorted(before.keys() & scaled.keys()):
        left.setdefault(_why_unjudged(before[name], scaled[name], base, head), []).append(name)
    counted = len(left.pop("", []))
    if not counted:
        raise Unjudged(f"no cell has a figure both of {base} and of {head}. Ask for more by --bench")
    return Verdict(base, head, list(changes(before, scaled, thresholds)), counted, left, any(map(TIMED.search, scaled)))


def _why_unjudged(before: Figure, after: Figure, base: str, head: str) -> str:
    """ "" where a figure of base stands beside one of head, or beside its failure."""
    if before.skipped or after.skipped:
        return BOTH_LACK if before.skipped and after.skipped else f"n/a in {base if before.skipped else head} alone"
    return "" if not before.failed else "failed in both" if after.failed else f"failed in {base} alone"


def changes(before: Mapping[str, Figure], after: Mapping[str, Figure], thresholds: Mapping[str, float]) -> Iterator[Change]:
    for name in sorted(before.keys() & after.keys()):
        share = threshold(name, thresholds)
        if kind := change(before[name], after[name], share):
            yield Change(name, kind, before[name].value, after[name].value, share)
