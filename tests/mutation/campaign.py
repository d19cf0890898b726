"""Many trials side by side, each in a process of its own with its own copy of the package: a mutant may hang, crash or fault the GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from mutation.faults import Mutant, Outcome, copied

TESTS = Path(__file__).resolve().parents[1]
NOTICED = ("killed", "crashed", "hung")
Job = tuple[str, str, str, tuple[str, ...]]  # backend, op, variant, dtypes: what a control is for


@dataclass(frozen=True)
class Verdict:
    """`verdict`: killed (a test failed), crashed (the process died of it), hung, survived, absent (nothing here runs it: `reason`),
    void (the sources as they are do not pass the same trial), nonsense (no fault at all, but code that does not compile)."""

    mutant: str
    backend: str
    op: str
    kind: str
    verdict: str
    by: str = ""
    reason: str = ""
    seconds: float = 0.0
    explained: str = ""  # why it may survive

    @property
    def noticed(self) -> bool:
        return self.verdict in NOTICED


def job(mutant: Mutant) -> Job:
    fault = mutant.fault
    return mutant.backend, fault.op, fault.variant, fault.dtypes


def tried(what: Job, mutant: Mutant | None, timeout_s: float, cache: Path) -> tuple[Outcome | str, float]:
    """The outcome, or "crashed: ..." or "hung", and the seconds it took. Without a mutant the sources are tried as they are. What is
    compiled goes to `cache`, where backends that compile the same sources find each other's."""
    began = time.monotonic()
    backend, op, variant, dtypes = what
    with tempfile.TemporaryDirectory(prefix="opwise-mutant-") as folder:
        path = copied(Path(folder), mutant.fault if mutant else None)
        caches = {name: str(cache / name) for name in ("OPWISE_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR")}
        python_path = os.pathsep.join(filter(None, (str(path), str(TESTS), os.environ.get("PYTHONPATH", ""))))
        spec = json.dumps({"backend": backend, "op": op, "variant": variant, "dtypes": list(dtypes)})
        process = subprocess.Popen(
            [sys.executable, "-B", "-m", "mutation.trial", spec],
            env={**os.environ, **caches, "PYTHONPATH": python_path, "OPWISE_COMMIT": "mutant", "OPWISE_TEST_EVERY_VARIANT": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, complaint = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the compilers it started
            process.communicate()
            return "hung", time.monotonic() - began
    seconds = time.monotonic() - began
    try:
        return Outcome(**json.loads(said.splitlines()[-1])), seconds
    except (IndexError, ValueError, TypeError):
        last = (complaint.strip().splitlines() or ["nothing said"])[-1]
        return f"crashed: exit status {process.returncode}: {last[:300]}", seconds


def verdict_of(mutant: Mutant, timeout_s: float, cache: Path) -> Verdict:
    outcome, seconds = tried(job(mutant), mutant, timeout_s, cache)
    if isinstance(outcome, Outcome):
        word = {"noticed": "killed"}.get(outcome.verdict, outcome.verdict)
        return _verdict(mutant, word, outcome.by, outcome.reason, seconds)
    word, _, reason = outcome.partition(": ")
    return _verdict(mutant, word, "the process", reason or f"not done after {timeout_s:.0f} s", seconds)


def _verdict(mutant: Mutant, word: str, by: str, reason: str, seconds: float = 0.0) -> Verdict:
    fault = mutant.fault
    return Verdict(str(mutant), mutant.backend, fault.op, fault.kind, word, by, reason, round(seconds, 1), fault.survives)


def campaign(
    mutants: list[Mutant], *, on_gpu: bool, jobs: int, timeout_s: float, control: bool, tell: Callable[[Verdict], None]
) -> list[Verdict]:
    """Every mutant's verdict, in the order given; `tell` hears each as it comes. Controls run first: sources without a fault that do not
    pass, or that nothing here runs, would make all of their mutants' verdicts meaningless."""
    done: dict[str, Verdict] = {}

    def keep(verdict: Verdict) -> None:
        done[verdict.mutant] = verdict
        tell(verdict)

    for m in mutants:
        if m.fault.gpu_only and not on_gpu:
            keep(_verdict(m, "absent", "", m.fault.gpu_only))
    with tempfile.TemporaryDirectory(prefix="opwise-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        cache, left = Path(folder), [m for m in mutants if str(m) not in done]
        unfit = dict(_controls({job(m) for m in left}, pool, timeout_s, cache)) if control else {}
        for m in left:
            if job(m) in unfit:
                keep(_verdict(m, *unfit[job(m)]))
        trials = [pool.submit(verdict_of, m, timeout_s, cache) for m in left if job(m) not in unfit]
        for trial in as_completed(trials):
            keep(trial.result())
    return [done[str(m)] for m in mutants]


def _controls(wanted: Iterable[Job], pool: ThreadPoolExecutor, timeout_s: float, cache: Path) -> Iterator[tuple[Job, tuple[str, str, str]]]:
    """(job, (verdict, by, reason)) of each whose sources, as they are, do not survive the trial."""
    running = {pool.submit(tried, what, None, 3 * timeout_s, cache): what for what in sorted(wanted)}
    for trial in as_completed(running):
        outcome, _ = trial.result()
        if isinstance(outcome, str):
            yield running[trial], ("void", "the sources as they are", outcome)
        elif outcome.verdict == "absent":
            yield running[trial], ("absent", "", outcome.reason)
        elif outcome.verdict != "survived":
            yield running[trial], ("void", f"the sources as they are: {outcome.by}", outcome.reason)


def as_json(verdicts: list[Verdict], where: str) -> str:
    return json.dumps({"where": where, "verdicts": [asdict(v) for v in verdicts]}, indent=1) + "\n"


def differences(verdicts: list[Verdict], other: Path) -> list[str]:
    """Mutants that were tried here and there, and noticed in one of the two places alone."""
    there = json.loads(other.read_text(encoding="utf-8"))
    known = {v["mutant"]: Verdict(**v) for v in there["verdicts"]}
    told = []
    for here in verdicts:
        that = known.get(here.mutant)
        both = that is not None and not {"absent", "void", "nonsense"} & {here.verdict, that.verdict}
        if that is not None and both and here.noticed != that.noticed:
            told.append(f"{here.mutant}: {here.verdict} here, {that.verdict} on {there['where']}")
    return told
