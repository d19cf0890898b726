"""Does the suite notice a fault in a kernel? Plants one at a time in a copy of the sources and runs the suite's tests on it.

    python scripts/mutate.py                                 every mutant that this machine can run
    python scripts/mutate.py triton_jit -k softmax           those of one backend whose names hold the word
    python scripts/mutate.py --list                          what there is, without running it
    python scripts/mutate.py --json verdicts.json            the verdicts as data too
    python scripts/mutate.py --against verdicts-cpu.json     and say where another machine's verdicts differ

Where there is a GPU the real kernels run on it, else what stands in for them. Each mutant is a process of its own, ended when it takes too
long. The sources as they are must pass the same tests first. docs/checking.md has the figures, and what survives and why.
Exit status: 0 all are noticed or explained, 1 one is not, or what was to be tried cannot be, 2 bad usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from mutation.campaign import Verdict, as_json, campaign, differences  # noqa: E402
from mutation.catalogue import BACKENDS, MUTANTS  # noqa: E402
from mutation.faults import KINDS, Mutant, matching  # noqa: E402


def main() -> int:
    arguments = parsed()
    chosen = matching(MUTANTS, arguments.backend, arguments.k)
    if not chosen:
        print(f"no mutant of {arguments.backend or 'any backend'} holds {arguments.k!r} in its name: --list shows all", file=sys.stderr)
        return 2
    if arguments.list:
        listed(chosen)
        return 0
    import torch  # late: what there is, and help, are told at once

    on_gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if on_gpu else "CPU"
    began, count = time.monotonic(), 0

    def tell(verdict: Verdict) -> None:
        nonlocal count
        count += 1
        by = f" by {verdict.by}" if verdict.noticed else ""
        print(f"[{count:3}/{len(chosen)}] {verdict.verdict:8} {verdict.mutant}{by}: {verdict.reason} ({verdict.seconds:.0f} s)", flush=True)

    print(f"{len(chosen)} mutants on {where}, {arguments.jobs} at a time; first the sources as they are", flush=True)
    verdicts = campaign(
        chosen, on_gpu=on_gpu, jobs=arguments.jobs, timeout_s=arguments.timeout, control=not arguments.no_control, tell=tell
    )
    if arguments.json:
        arguments.json.write_text(as_json(verdicts, where), encoding="utf-8")
    status = summed_up(verdicts)
    if arguments.against:
        told = differences(verdicts, arguments.against)
        print("\n".join(told) if told else f"no mutant has another verdict in {arguments.against}")
    print(f"{time.monotonic() - began:.0f} s")
    return status


def listed(mutants: list[Mutant]) -> None:
    for mutant in mutants:
        fault = mutant.fault
        note = f"  [GPU: {fault.gpu_only}]" if fault.gpu_only else f"  [may survive: {fault.survives}]" if fault.survives else ""
        print(f"{mutant}  ({fault.kind}, {fault.file}){note}")
    for kind, count in Counter(m.fault.kind for m in mutants).most_common():
        print(f"{count:4} {kind:9} {KINDS[kind]}")


def summed_up(verdicts: list[Verdict]) -> int:
    """The table, what survived, and the exit status."""
    print(f"\n{'backend':14}{'killed/planted':>16}{'':8}{'not run here':>14}{'explained':>11}")
    for backend in BACKENDS:
        of_backend = [v for v in verdicts if v.backend == backend]
        apart = [v for v in of_backend if v.explained]
        ran = [v for v in of_backend if v.verdict not in ("absent", "void", "nonsense") and not v.explained]
        killed, absent = sum(v.noticed for v in ran), sum(v.verdict == "absent" for v in of_backend)
        if of_backend:
            share = f"{killed / len(ran):.0%}" if ran else ""
            print(f"{backend:14}{f'{killed}/{len(ran)}':>16}{share:>8}{absent:>14}{len(apart):>11}")
    failed = 0
    for verdict in verdicts:
        if verdict.verdict in ("void", "nonsense") or (verdict.verdict == "survived" and not verdict.explained):
            failed = 1
            print(f"{verdict.verdict.upper()} {verdict.mutant}: {verdict.by} {verdict.reason}")
        elif verdict.verdict == "survived":
            print(f"survived, as it may: {verdict.mutant}: {verdict.explained}")
    for reason, count in Counter(v.reason for v in verdicts if v.verdict == "absent").items():
        print(f"not run here: {count}, {reason}")
    return failed


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", nargs="?", default="", choices=["", *BACKENDS], help="all, unless one is named")
    parser.add_argument("-k", default="", metavar="PART", help="mutants whose names hold this, as softmax or matmul:textbook")
    parser.add_argument("--list", action="store_true", help="name them, with their kinds and files, and run none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")
    parser.add_argument("--against", type=Path, metavar="FILE", help="verdicts of another machine to compare with")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: one a core)")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="S", help="seconds after which a mutant has hung (default 180)")
    parser.add_argument("--no-control", action="store_true", help="leave out the trial of the sources as they are")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
