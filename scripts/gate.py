"""Is HEAD slower than BASE? `asv continuous` with interleaved rounds, then `asv compare --split`, then one verdict.

    python scripts/gate.py main my-branch              every benchmark that this machine can run
    python scripts/gate.py main HEAD --bench softmax   those whose names match
    python scripts/gate.py main HEAD --rounds 1        quicker, and blind to what differs from process to process
    python scripts/gate.py HEAD^1 HEAD --summary "$GITHUB_STEP_SUMMARY"    in a workflow (docs/ci.md): the verdict as Markdown as well

asv's tables have one factor for all figures, and `asv continuous` prints none where a cell failed. The verdict has a threshold for each
kind of figure, `regressions_thresholds` in asv.conf.json, by which the dashboard finds regressions too: a figure is worse where it
rose by more than that, and where Mann and Whitney's test on its samples (p = 0.002) says that it did not happen by chance. A time is
judged beside torch eager's, which was taken in turns with it: what moved both was the machine.
Exit status: 0 nothing is worse; 1 something is, or fails now and did not; 2 nothing can be said: asv could not run, gave no figures, or
something else used the GPU meanwhile; 130 it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from gate_summary import Verdict, not_judged
from gate_verdict import WIDE, Unjudged, disturbed, figures, judged, threshold

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ".asv/gate"  # beside the history, not in it: what is compared here may never land. Emptied before each run
# `asv continuous` exits 0 where nothing is worse by its own factor, 2 where a cell failed, and 1 both where something is worse, which it
# says in these words at its end, and where it gave up.
SLOWER = "PERFORMANCE DECREASED."
GAVE_UP = {
    "No benchmarks selected": "no benchmark's name matches --bench. Its pattern is searched for in names such as "
    "square.Compiled.track_registers('triton_jit', 'float32', 'sm_90'); without a GPU those of Compiled are all there are",
    "import the benchmark suite": "the suite in benchmarks/ does not import. Mend what asv prints above, and run the gate again",
}


def main(arguments: Sequence[str] | None = None) -> int:
    wanted = _arguments(arguments)
    for stop in (signal.SIGTERM, signal.SIGHUP):  # a cancelled workflow, a closed terminal: cleared up after as after Ctrl-C
        signal.signal(stop, signal.default_int_handler)
    os.chdir(ROOT)
    try:
        with _alone() as lock:
            verdict = _measured(wanted, lock)
        status, markdown = int(verdict.worse > 0), verdict.markdown()
        print(*[change.line() for change in verdict.changes], *filter(None, [verdict.left_out()]), verdict.line(), sep="\n")
    except Unjudged as why:
        status, markdown = 2, not_judged(f"{why}.")
        print(f"Nothing is judged: {why}")
    except Exception as problem:  # Python's own exit status would be 1, which says that something is worse
        traceback.print_exc()
        status, markdown = 2, not_judged(f"The gate itself failed: `{problem!r}`.")
    except KeyboardInterrupt:
        print("\nInterrupted: nothing is judged")
        return 130
    if wanted.summary:
        with wanted.summary.open("a", encoding="utf-8") as file:
            file.write(markdown)
    if wanted.status:
        wanted.status.write_text(f"{status}\n")
    return status


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit or branch to be measured against")
    parser.add_argument("head", help="the commit or branch in question")
    parser.add_argument("--bench", action="append", default=[], help="a pattern that the names of benchmarks must match (may be repeated)")
    rounds = 3 if shutil.which("nvidia-smi") else 1  # what compilers say is the same each time
    parser.add_argument("--rounds", type=int, default=rounds, help="fresh processes a commit, in turns (default: 3 on a GPU, else 1)")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="append the verdict to FILE, as Markdown")
    parser.add_argument("--status", type=Path, metavar="FILE", help="write the exit status to FILE too: make has 2 for every failure")
    wanted = parser.parse_args(arguments)
    if wanted.rounds < 1:
        parser.error(f"--rounds {wanted.rounds}: at least one is needed")
    try:  # before an hour of measuring, not after it; an older status must not stand for this run's
        if wanted.status:
            wanted.status.write_text("")
        if wanted.summary:
            wanted.summary.open("a").close()
    except OSError as problem:
        parser.error(f"cannot write {problem.filename}: {problem.strerror}; its folder must exist")
    wanted.summary, wanted.status = (path and path.absolute() for path in (wanted.summary, wanted.status))
    return wanted


@contextlib.contextmanager
def _alone() -> Iterator[IO[str]]:
    """One gate at a time in a checkout: two would mix their results, and asv's folder of the commit at hand.

    The kernel drops the lock with its last holder, asv being one: what a killed gate has left running still counts.
    """
    folder = ROOT / ".asv"
    folder.mkdir(exist_ok=True)
    with (folder / "gate.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unjudged("another gate runs in this checkout. Wait for it, or gate in a worktree of your own") from None
        yield lock


def _measured(wanted: argparse.Namespace, lock: IO[str]) -> Verdict:
    names = (wanted.base, wanted.head)
    commits = [_hash(name) for name in names]  # once: a branch may move meanwhile
    if Path(RESULTS).exists():
        shutil.rmtree(RESULTS)  # or an earlier run's figures would be judged where this one gives none
    config = ROOT / ".asv-gate.conf.json"  # asv takes the folder of its configuration for the project's
    try:
        config.write_text(json.dumps(_gate_configuration()))
        benches = [argument for pattern in wanted.bench for argument in ("--bench", pattern)]
        status, said = _asv(lock, config, "continuous", *commits, *benches, "--interleave-rounds", "--record-samples",
                            "--attribute", f"rounds={wanted.rounds}", "--factor", _factor(), "--show-stderr")  # fmt: skip
        if status not in (0, 2) and not (status == 1 and SLOWER in said):
            why = next((why for words, why in GAVE_UP.items() if words in said), "mend what it prints above")
            raise Unjudged(f"asv could not run (exit status {status}): {why}")
        status, _ = _asv(lock, config, "compare", *commits, "--split", "--factor", _factor())
        if status:
            raise Unjudged(f"asv compare found nothing to compare (exit status {status}): see above")
        return _verdict(config, commits, *[f"{name} ({commit[:8]})" for name, commit in zip(names, commits, strict=True)])
    finally:
        config.unlink(missing_ok=True)


def _hash(name: str) -> str:
    done = subprocess.run(["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unjudged(f"git knows no commit {name}. Fetch it (a workflow's checkout needs fetch-depth: 0), or mend its name")
    return done.stdout.strip()


def _configuration() -> dict[str, Any]:
    from asv.util import load_json

    return dict(load_json(str(ROOT / "asv.conf.json"), js_comments=True))


def _gate_configuration() -> dict[str, Any]:
    return {**_configuration(), "results_dir": RESULTS}


def _factor() -> str:
    """asv's one factor: that of the kernels."""
    return f"{1 + threshold('x.X.track_kernel_cold', _configuration()['regressions_thresholds']):g}"


def _asv(lock: IO[str], config: Path, *arguments: str) -> tuple[int, str]:
    """asv's exit status, and what it printed, which is shown as it comes."""
    command = [sys.executable, "-u", "-m", "asv", "--config", str(config), *arguments]
    said = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(lock.fileno(),)) as process:
        assert process.stdout is not None
        try:
            while some := os.read(process.stdout.fileno(), 65536):
                said += some
                os.write(1, some)
            return process.wait(), said.decode(errors="replace")
        except KeyboardInterrupt:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """asv ends its own processes when it is interrupted, as a terminal's Ctrl-C does; other signals reach the gate alone."""
    for stop in (lambda: None, lambda: process.send_signal(signal.SIGINT), process.kill):
        stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            return


def _verdict(config: Path, commits: Sequence[str], base: str, head: str) -> Verdict:
    from asv.config import Config

    conf = Config.load(str(config))
    before, after = (figures(conf, commit) for commit in commits)
    for name, found in ((base, before), (head, after)):
        if wide := disturbed(found):
            raise Unjudged(
                f"{len(wide)} kernels' times of {name} scatter by more than {WIDE:.0%}, {wide[0]} for one: something else used the GPU. "
                "Measure again when it is alone"
            )
    return judged(base, head, before, after, conf.regressions_thresholds)


if __name__ == "__main__":
    sys.exit(main())
