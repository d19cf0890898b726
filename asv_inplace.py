"""An environment for asv that installs nothing: the interpreter that runs asv, and each commit's kernels under today's instruments.

asv's own environments need the network for every commit, and its `existing` one refuses ranges. Here a commit is checked out into a
folder of its own, and a package of links is put before everything else on the path: `opwise` with the commit's `ops` and `backends`
and the working tree's everything else. So an old kernel and a new one are timed by one clock. asv loads this file as a plugin
(asv.conf.json); the hooks that a subclass cannot reach are patched at the end, for the version of asv that constraints.txt pins.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from asv import environment, machine, util
from asv.benchmarks import Benchmarks
from asv.commands import compare, continuous
from asv.commands import run as run_command
from asv.console import log

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "src" / "opwise"
OF_THE_COMMIT = ("ops", "backends")
KERNELS = tuple(f"src/opwise/{part}" for part in OF_THE_COMMIT)
NO_GPU = "compile-only"  # what a machine without a GPU is called: what compilers say does not depend on the machine
FACTS = """
import json, torch
from opwise.measure.device import facts, slug
found = facts(torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))
print(json.dumps({**found, "slug": slug(found)}))
"""


class InPlace(environment.Environment):  # type: ignore[misc]
    """asv's environment type "inplace"."""

    tool_name = "inplace"
    order: dict[str, Any] = {}  # noqa: RUF012  what benchmarks/_order.py reads; the plugin makes it anew for each run

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: Any) -> None:
        self._python, self._requirements = python, requirements  # asv's own __init__ reads them before it sets them
        self.results_dir = conf.results_dir
        super().__init__(conf, python, requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        return python == f"{sys.version_info[0]}.{sys.version_info[1]}"

    def check_presence(self) -> bool:
        return Path(self._path).is_dir()

    def _setup(self) -> None:
        Path(self._path).mkdir(parents=True, exist_ok=True)

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        if self._get_installed_commit_hash() != commit_hash:
            self._set_installed_commit_hash(None)
            self.checkout_project(repo, commit_hash)
            self._set_installed_commit_hash(commit_hash)
        self._set_commit_hash(commit_hash)
        self._graft()

    def checkout_project(self, repo: Any, commit_hash: str) -> None:
        """The commit's package alone: of a whole checkout its recorded runs are the most. A clone without them will do."""
        self._set_commit_hash(commit_hash)
        unpacked(Path(self._build_root), commit_hash)

    def _graft(self) -> None:
        """The package of links. Made anew each time: the working tree may have gained a file since."""
        package = Path(self._path, "graft", "opwise")
        shutil.rmtree(package, ignore_errors=True)
        package.mkdir(parents=True)
        package.joinpath("__init__.py").write_text('"""The instruments of one commit over the ops and backends of another."""\n')
        for path in PACKAGE.iterdir():
            source = Path(self._build_root, "src", "opwise", path.name) if path.name in OF_THE_COMMIT else path
            if source.exists() and path.name not in ("__init__.py", "__pycache__"):
                (package / path.name).symlink_to(source)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        env = {**(kwargs.pop("env", None) or os.environ), **self._global_env_vars}
        env["OPWISE_COMMIT"] = env.get("ASV_COMMIT", "")[:8]
        env["OPWISE_TUNED"] = "off"  # a commit is held against others by the tables that it ships
        env["OPWISE_HISTORY"] = str(self._ordered(env["ASV_COMMIT"])) if self.order and env.get("ASV_COMMIT") else ""
        # The user's own path comes along: on an offline machine it may hold the packages.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(self._path, "graft")), os.environ.get("PYTHONPATH", "")]))
        env["ASV_PYTHONPATH"] = env["PYTHONPATH"]
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self._install_timeout
        with _told(self._progress if "setup_cache" in args else None):
            return util.check_output([sys.executable, *args], env=env, **kwargs)

    @property
    def _progress(self) -> Path:
        return Path(self._path, "progress")

    def _ordered(self, commit: str) -> Path:
        path = Path(self._path, "order.json")
        path.write_text(json.dumps({**self.order, "commit": commit, "progress": str(self._progress)}))
        return path


def unpacked(folder: Path, commit: str) -> None:
    """src/opwise/ops and backends of a commit, in an empty folder; of what the commit lacks there is none."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = subprocess.run(
        ["git", "-C", str(ROOT), "ls-tree", "-d", "--name-only", commit, *KERNELS], capture_output=True, text=True, check=True
    ).stdout.split()
    if names:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit, *names], stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)


@contextlib.contextmanager
def _told(path: Path | None) -> Iterator[None]:
    """Shows the lines that another process appends to a file meanwhile: asv itself prints nothing until it is done."""
    if path is None:
        yield
        return
    path.write_text("")
    done = threading.Event()

    def follow() -> None:
        with path.open() as file:
            while True:
                last = done.wait(0.3)
                for line in file:
                    log.info(line.rstrip())
                if last:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@cache
def machine_facts() -> dict[str, str]:
    """What the dashboard filters by. Asked of a process of its own: asv itself need not import torch."""
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", FACTS], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise util.UserError(f"opwise does not import here, so the machine cannot be told: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    versions = {name: found["versions"].get(name, "none") for name in ("torch", "triton", "cupy", "numba", "numba-cuda")}
    if found["device"] == "cpu":
        shared = {"machine": NO_GPU, "gpu": "none", "driver": "none", "cuda": "none", "cpu": "any", "num_cpu": "any", "ram": "any"}
    else:
        shared = {"machine": found["slug"], "gpu": found["device"], "driver": str(found["driver"]), "cuda": str(found["cuda"]),
                  "cpu": str(found["cpu"]), "num_cpu": "any", "ram": "any"}  # fmt: skip
    # One thread launches: how many cores and how much memory a host has besides would only part one GPU's history into several lines.
    return {**shared, **versions, "os": platform.system(), "arch": platform.machine()}


def _load_machine(machine_name: str | None = None, **_: Any) -> Any:
    """In place of asv's questions on the first run: what the machine is can be read off it. --machine NAME renames it."""
    global _named
    here = machine.Machine()
    here.__dict__.update(machine_facts())
    if machine_name:
        here.machine = _named = machine_name
    return here


def _discover(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Without a GPU what needs one is left out, not marked: it stays unmeasured, and asv does not come back for it."""
    found = _asv_discover(cls, *args, **kwargs)
    timed = {name for name in found if ".Compiled." not in name}
    if timed and machine_facts()["gpu"] == "none":
        log.info("No GPU here: compilers are asked about each kernel, nothing is timed")
        return found.filter_out(timed)
    return found


def _run_selected(benchmarks: Any, env: Any, **kwargs: Any) -> Any:
    """Tells the environment which cells were selected: a sweep measures them together, and no others."""
    quick = bool(kwargs.get("quick"))
    # What is compared is measured: two commits of one machine code would else have one figure. Nor is --quick for keeps.
    kept = None if _comparing or quick else Path(env.results_dir).parent / "history" / (_named or machine_facts()["machine"])
    env.order = {**selected(benchmarks), "quick": quick, "store": str(kept.resolve()) if kept else ""}
    return _run_benchmarks(benchmarks, env, **kwargs)


def selected(benchmarks: Any) -> dict[str, list[list[str]]]:
    """{"timed": cells, "compiled": cells, "bits": cells}: op and parameters, each once, of the benchmarks that look values up."""
    found: dict[str, dict[tuple[str, ...], None]] = {"timed": {}, "compiled": {}, "bits": {}}
    for name, benchmark in benchmarks.items():
        op, class_name, _ = name.split(".", 2)
        if not benchmark.get("setup_cache_key"):
            continue
        rows = list(itertools.product(*([ast.literal_eval(value) for value in values] for values in benchmark["params"])))
        chosen = benchmarks.benchmark_selection.get(name)
        for row in rows if chosen is None else [rows[i] for i in chosen]:
            found[class_name.lower() if class_name in ("Compiled", "Bits") else "timed"][op, *row] = None
    return {kind: [list(cell) for cell in cells] for kind, cells in found.items()}


def _compare(cls: Any, *args: Any, **kwargs: Any) -> Any:
    global _comparing
    _comparing = True
    return _asv_continuous(cls, *args, **kwargs)


def _write_json(path: str, data: Any, api_version: int | None = None, compact: bool = False) -> None:
    """As asv's, but all or nothing: a full disk or a kill leaves the file that was there."""
    target = Path(path).resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if api_version is not None:
        data = {**data, "version": api_version}
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(data, file, **({} if compact else {"indent": 4, "sort_keys": True}))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _compare_here(cls: Any, conf: Any, hash_1: Any, hash_2: Any, *args: Any, **kwargs: Any) -> Any:
    """Where several machines have results, those of this one, as asv asks for; --machine names another."""
    machines = [path.parent.name for path in Path(conf.results_dir).glob("*/machine.json")]
    if kwargs.get("machine") is None and not args and len(machines) > 1 and machine_facts()["machine"] in machines:
        kwargs["machine"] = machine_facts()["machine"]
    return _asv_compare(cls, conf, hash_1, hash_2, *args, **kwargs)


_comparing, _named = False, ""  # by asv continuous? by --machine
_asv_compare = compare.Compare.run.__func__
compare.Compare.run = classmethod(_compare_here)
_asv_continuous = continuous.Continuous.run.__func__
continuous.Continuous.run = classmethod(_compare)
_asv_discover = Benchmarks.discover.__func__
Benchmarks.discover = classmethod(_discover)
_run_benchmarks = run_command.run_benchmarks
run_command.run_benchmarks = _run_selected
machine.Machine.load = staticmethod(_load_machine)
util.write_json = _write_json
