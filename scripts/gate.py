"""Is HEAD slower than BASE? `asv continuous` with interleaved rounds, then `asv compare --split`, then one verdict.

    python scripts/gate.py main my-branch              every benchmark that this machine can run
    python scripts/gate.py main HEAD --bench softmax   those whose names match
    python scripts/gate.py main HEAD --rounds 1        quicker, and blind to what differs from process to process

asv's tables have one factor for all figures, and `asv continuous` prints none where a cell failed. The verdict has a threshold for each
kind of figure, `regressions_thresholds` in asv.conf.json, by which the dashboard finds regressions too: a figure is worse where it
rose by more than that, and where Mann and Whitney's test on its samples (p = 0.002) says that it did not happen by chance. A time is
judged beside torch eager's, which was taken in turns with it: what moved both was the machine.
Exit status: 0 nothing is worse, 1 something is, or fails now and did not, 2 asv could not run, or something else used the GPU meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ".asv/gate"  # beside the history, not in it: what is compared here may never land
# What is not judged: errors are drawn from fresh inputs each time. One above its bound is a failure, and that is judged.
JUDGED = r"track_(kernel_cold|kernel_capped|call_cost|extra_bytes|registers|spill_bytes|instructions)\b"
# Of 195 kernels' times none had quartiles this far apart in any of seven sweeps of an H200 that did nothing else, 30 of 75 in one beside
# which another process ran.
WIDE, WIDE_SHARE = 0.10, 0.02
BACKEND = re.compile(r"\('\w+'")
TIMED = re.compile(r"track_(kernel_cold|kernel_capped|call_cost)\(")
YARDSTICK = "torch_eager"


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit or branch to be measured against")
    parser.add_argument("head", help="the commit or branch in question")
    parser.add_argument("--bench", action="append", default=[], help="a pattern that the names of benchmarks must match (may be repeated)")
    rounds = 3 if shutil.which("nvidia-smi") else 1  # what compilers say is the same each time
    parser.add_argument("--rounds", type=int, default=rounds, help="fresh processes a commit, in turns (default: 3 on a GPU, else 1)")
    wanted = parser.parse_args(arguments)
    os.chdir(ROOT)
    config = ROOT / ".asv-gate.conf.json"  # asv takes the folder of its configuration for the project's
    try:
        config.write_text(json.dumps(_gate_configuration()))
        benches = [argument for pattern in wanted.bench for argument in ("--bench", pattern)]
        _asv(config, "continuous", wanted.base, wanted.head, *benches, "--interleave-rounds", "--record-samples",
             "--attribute", f"rounds={wanted.rounds}", "--factor", _factor(), "--show-stderr")  # fmt: skip
        if _asv(config, "compare", wanted.base, wanted.head, "--split", "--factor", _factor()):
            return 2
        return _verdict(config, wanted.base, wanted.head)
    finally:
        config.unlink(missing_ok=True)


def _configuration() -> dict[str, Any]:
    from asv.util import load_json

    return dict(load_json(str(ROOT / "asv.conf.json"), js_comments=True))


def _gate_configuration() -> dict[str, Any]:
    return {**_configuration(), "results_dir": RESULTS}


def _factor() -> str:
    """asv's one factor: that of the kernels."""
    return f"{1 + threshold('x.X.track_kernel_cold', _configuration()['regressions_thresholds']):g}"


def _asv(config: Path, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "asv", "--config", str(config), *arguments], check=False).returncode


def _verdict(config: Path, base: str, head: str) -> int:
    from asv.config import Config
    from asv.repo import get_repo

    conf = Config.load(str(config))
    repo = get_repo(conf)
    before, after = (figures(conf, repo.get_hash_from_name(name)) for name in (base, head))
    worse = []
    for name, found in ((base, before), (head, after)):
        if wide := disturbed(found):
            print(f"{len(wide)} kernels' times of {name} scatter by more than {WIDE:.0%}, {wide[0]} for one: something else used the GPU.")
            print("Nothing is judged: measure again when it is alone")
            return 2
    after = beside_the_yardstick(before, after)
    for name, kind, line in changes(before, after, conf.regressions_thresholds):
        print(f"{kind:>9}  {line}")
        worse += [name] if kind in ("worse", "fails now") else []
    counted = sum(1 for name in before.keys() & after.keys() if not (before[name].skipped or after[name].skipped))
    print(f"{len(worse)} of {counted} figures of {head} are worse than those of {base}" + (": the gate is shut" if worse else ""))
    return 1 if worse else 0 if counted else 2


def changes(before: Mapping[str, Figure], after: Mapping[str, Figure], thresholds: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(before.keys() & after.keys()):
        share = threshold(name, thresholds)
        kind = change(before[name], after[name], share)
        if kind:
            a, b = before[name].value, after[name].value
            by = f"{b / a - 1:+.1%}, {share:.0%} is allowed" if a and b else f"{a} -> {b}"
            yield name, kind, f"{name}  {by}"


if __name__ == "__main__":
    sys.exit(main())
