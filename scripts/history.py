"""Measures the commits that this machine's history lacks, the newest first: says how many and about how long, then runs asv on them.

    python scripts/history.py                       those since the last tag; without one 40, evenly from the first commit to HEAD
    python scripts/history.py --range v0.1..main    those of a range
    python scripts/history.py --count 10            10 of them, evenly spread
    python scripts/history.py --dry-run             which, and how long
    python scripts/history.py --bench softmax       what follows is asv run's

A commit counts that changed ops/ or backends/ of the package: of others the kernels are their parent's. On a GPU the kernels are timed;
what compilers say of them takes longer, needs no GPU and is measured where there is none. Calls of opwise.softmax and kin, and whether
bits are the same each time (Bits), are measured where --bench asks for them. Ctrl-C keeps what is done, and the next call goes on from
there. Exit status: asv's, 0 where nothing was missing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from asv_inplace import KERNELS, NO_GPU, machine_facts  # noqa: E402  beside asv.conf.json, no package

RESULTS = ROOT / "results" / "asv"
COUNT = 40
GUESS_S = 90.0  # a commit, where none was measured on this machine
KERNELS_TIMES = r"^(?!calls\.)\w+\.(?!Compiled\.|Bits\.)"  # benchmarks, as --bench has them


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout.strip()


def commits(asked: str) -> list[str]:
    """Those that changed kernels, the newest first. Raises CalledProcessError for a range that git does not know."""
    if not asked:
        tag = subprocess.run(["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0"], capture_output=True, text=True, check=False)
        asked = f"{tag.stdout.strip()}..HEAD" if tag.returncode == 0 else "HEAD"
    return git("rev-list", "--first-parent", asked, "--", *KERNELS).split()


def spread(found: Sequence[str], count: int, known: Collection[str] = ()) -> list[str]:
    """So many, evenly, from the first to the last. One of `known` within half a step of a place takes it, but not the first place: a commit
    later, a history is not measured again beside its old places."""
    if len(found) <= count or count == 1:
        return list(found[:count])
    step = (len(found) - 1) / (count - 1)
    places = [i for i, commit in enumerate(found) if commit in known]
    chosen = [0]
    for i in range(1, count):
        near = [place for place in places if abs(place - i * step) <= step / 2 and place > chosen[-1]]
        chosen.append(min(near, key=lambda place: abs(place - i * step), default=max(round(i * step), chosen[-1] + 1)))
    return [found[place] for place in chosen]


def wanted(machine: str, patterns: Sequence[str]) -> frozenset[str]:
    """The benchmarks that a commit is to have here: those that asv would select, of what needs no GPU where there is none."""
    known = json.loads((RESULTS / "benchmarks.json").read_text(encoding="utf-8"))
    names = (name for name in known if name != "version" and (machine != NO_GPU or ".Compiled." in name))
    plain = [pattern.partition("\\(")[0] for pattern in patterns]  # what follows is about parameters
    return frozenset(name for name in names if not plain or any(re.search(pattern, name) for pattern in plain))


def measured(machine: str, names: frozenset[str]) -> dict[str, tuple[bool, float]]:
    """Short commit -> (has it all of them?, the seconds that its sweeps took)."""
    found = {}
    for path in (RESULTS / machine).glob("*-*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        found[path.name.partition("-")[0]] = names <= data["results"].keys(), sum(data.get("durations", {}).values())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--range", default="", help="as git's; default: since the last tag, or all")
    parser.add_argument("--count", type=int, help=f"evenly spread, of those in the range (default: all; without a tag or a range {COUNT})")
    parser.add_argument("--dry-run", action="store_true", help="measure nothing")
    options, more = parser.parse_known_args(arguments)

    try:
        found = commits(options.range)
    except subprocess.CalledProcessError as error:
        print(f"git knows no commits of {options.range!r}: {error.stderr.strip()}", file=sys.stderr)
        return 2
    tagged = bool(options.range) or bool(git("tag", "--merged", "HEAD"))
    machine = next((value for name, value in pairwise(more) if name in ("--machine", "-m")), machine_facts()["machine"])
    patterns = [value for name, value in pairwise(more) if name in ("--bench", "-b")]
    if not patterns and machine != NO_GPU:
        patterns, more = [KERNELS_TIMES], [*more, "--bench", KERNELS_TIMES]
    known = measured(machine, wanted(machine, patterns))
    whole = {commit for commit in found if known.get(commit[:8], (False, 0.0))[0]}
    chosen = spread(found, options.count or (len(found) if tagged else COUNT), whole)
    missing = [commit for commit in chosen if commit not in whole]
    times = [seconds for all_of_it, seconds in known.values() if all_of_it and seconds > 0]
    each = median(times) if times else GUESS_S
    why = f"the median of the {len(times)} that were measured" if times else "a guess: none was measured here"
    print(f"{len(missing)} of {len(chosen)} commits are not measured on {machine}", end="")
    print(f": about {len(missing) * each / 60:.0f} min ({each:.0f} s each, {why}), the newest first" if missing else ": nothing to do")
    for commit in missing if options.dry_run else ():
        print(git("log", "-1", "--format=%h %cs %s", commit)[:120])
    if options.dry_run or not missing:
        return 0
    print("Ctrl-C keeps what is done; the same command goes on from there", flush=True)
    with tempfile.NamedTemporaryFile("w", prefix="opwise-history-", suffix=".txt") as file:
        file.write("\n".join(missing) + "\n")
        file.flush()
        command = [sys.executable, "-m", "asv", "run", f"HASHFILE:{file.name}", "--skip-existing", *more]
        try:
            return subprocess.run(command, cwd=ROOT, check=False).returncode
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
