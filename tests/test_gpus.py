"""Which GPUs, by UUID, and that nobody else computes on them: a played driver, real locks and real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from stand_ins import CATALOGUE, FACTS, played

from opwise.choosing.store import stale
from opwise.commands import executors
from opwise.locks import Lock, Taken
from opwise.record import read
from opwise.runner.session import Session
from opwise.runner.survey import Survey
from opwise.scaling import gpus
from opwise.scaling.gpus import Busy, Gpu, NoSuchGpu, chosen, claim, neighbours, visible

HERE = [Gpu(i, f"GPU-{i}aaabbbb-1111-2222-3333-444444444444", "NVIDIA Toy") for i in range(4)]
MIXED = [*HERE[:2], Gpu(2, "GPU-2ccccccc-1111", "NVIDIA Other")]


class FakeNvml:
    """What the driver says of one GPU."""

    class NVMLError(Exception): ...

    def __init__(self, *pids: int, used: int = 0) -> None:
        self.pids, self.used = pids, used

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=self.used)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("OPWISE_RUNTIME_DIR", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        (None, [0, 1, 2, 3]), ("2,0", [2, 0]), ("GPU-1aaa,GPU-3", [1, 3]), ("", []), ("1,9,2", [1]), ("NoDevFiles", []), ("0,GPU-", [0]),
    ],
)  # fmt: skip
def test_what_cuda_would_show(setting: str | None, kept: list[int]) -> None:
    found = visible(HERE, setting)
    assert [gpu.uuid for gpu in found] == [HERE[i].uuid for i in kept]
    assert [gpu.index for gpu in found] == list(range(len(kept)))


def test_gpus_are_chosen_by_index_or_uuid() -> None:
    assert chosen("all", HERE) == HERE
    assert chosen("3, 1", HERE) == [HERE[3], HERE[1]]
    assert chosen("GPU-2aaa,2", HERE) == [HERE[2]], "one GPU named twice is one"


@pytest.mark.parametrize(
    ("text", "found", "says"),
    [
        ("all", [], "no GPU is seen"),
        ("7", HERE, "'7' is none of GPU 0 (NVIDIA Toy, GPU-0aaabbbb)"),
        ("GPU-", HERE, "'GPU-' is none of"),
        ("", HERE, "'' is none of"),
        ("all", MIXED, "NVIDIA Toy and NVIDIA Other, a run is of one model"),
    ],
)
def test_what_is_no_gpu_is_refused_with_what_there_is(text: str, found: list[Gpu], says: str) -> None:
    with pytest.raises(NoSuchGpu) as refused:
        chosen(text, found)
    assert says in str(refused.value)
    assert "--gpus" in str(refused.value)


HIDDEN = 2**30  # no system has so high a number


@pytest.mark.parametrize(
    ("pids", "says"),
    [
        ((), ""),
        ((100,), ""),  # ourselves
        ((101,), ""),  # our worker
        ((101, 102), ""),  # its child
        ((7, 101), "process 7"),
        ((HIDDEN,), f"process {HIDDEN} outside of this container"),
    ],
)
def test_own_processes_are_none_of_others(monkeypatch: pytest.MonkeyPatch, pids: tuple[int, ...], says: str) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 100)
    told, doubt = neighbours("GPU-1", FakeNvml(*pids), {1: 0, 7: 1, 100: 7, 101: 100, 102: 101})
    assert told.startswith(says)
    assert bool(told) == bool(says)
    assert not doubt


def test_where_numbers_are_of_the_host_one_hidden_process_is_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus.torch.cuda, "is_initialized", lambda: True)
    assert neighbours("GPU-1", FakeNvml(5000), {1: 0})[0] == ""
    assert "5000" in neighbours("GPU-1", FakeNvml(5000, 5001), {1: 0})[0]


def test_memory_that_nobody_seems_to_hold_is_only_a_doubt() -> None:
    told, doubt = neighbours("GPU-1", FakeNvml(used=9 << 30), {1: 0})
    assert not told
    assert "9.0 GiB" in doubt
    assert neighbours("GPU-1", FakeNvml(used=600 << 20), {1: 0}) == ("", "")


def test_a_gpu_that_is_computed_on_is_refused_or_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "neighbours", lambda uuid: ("process 12 (python)", ""))
    with pytest.raises(Busy, match=r"GPU 1 is computed on by process 12 \(python\): wait for it, .*--share"):
        claim("GPU 1", "GPU-1", settle_s=0)
    kept = claim("GPU 1", "GPU-1", share=True, settle_s=0)
    assert kept.shared == "process 12 (python)"
    assert kept.lock is not None, "what was refused has let go of the lock"
    kept.release()


def test_a_lock_is_held_against_other_processes_until_its_holder_dies(folder: Path) -> None:
    script = (
        "import sys, time; from opwise.locks import Lock; from pathlib import Path\n"
        "lock = Lock(Path(sys.argv[1]), 'opwise process 77'); print('held', flush=True); time.sleep(60)"
    )
    folder.mkdir()
    path = folder / "GPU-1.lock"
    holder = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Busy, match="being measured on by opwise process 77"):
            claim("GPU 1", "GPU-1")
        assert claim("GPU 1", "GPU-1", share=True).shared == "opwise process 77"
        assert claim("GPU 2", "GPU-2").lock is not None, "another GPU is free"
    finally:
        holder.kill()
        holder.communicate()
    again = claim("GPU 1", "GPU-1")
    assert not again.shared
    assert str(os.getpid()) in path.read_text()
    again.release()


def test_a_file_can_be_locked_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("a line\n")
    with Lock(path), pytest.raises(Taken):
        Lock(path)
    Lock(path).release()
    assert path.read_text() == "a line\n"


def test_a_folder_of_somebody_else_holds_no_locks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.runtime_folder().stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(Busy, match="set OPWISE_RUNTIME_DIR"):
        gpus.runtime_folder()


@pytest.fixture
def one_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on a machine with toy GPUs, nothing on them, whose jobs are played."""
    monkeypatch.setattr(executors, "chosen_device", lambda name: "cuda:0")
    monkeypatch.setattr(executors, "surveyed", lambda name, files: Survey("cuda:0", {**FACTS, "gpu": "GPU-0aaabbbb"}, CATALOGUE))
    monkeypatch.setattr(gpus, "listed", lambda: HERE)
    monkeypatch.setattr(gpus, "neighbours", lambda uuid: ("", ""))


@pytest.mark.usefixtures("one_toy")
def test_one_gpu_is_locked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPWISE_SHARE", raising=False)
    with executors.ready(None) as here:
        assert not here.shared
        with pytest.raises(typer.Exit) as refused, executors.ready("cuda:0"):
            pytest.fail("the GPU is taken")
        assert refused.value.exit_code == 2
        with executors.ready(None, share=True) as beside:
            assert f"opwise process {os.getpid()}" in beside.shared
    with executors.ready(None) as again:
        assert not again.shared, "let go at the end"


@pytest.mark.usefixtures("one_toy")
def test_who_shared_the_gpu_is_in_every_record_and_makes_it_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "neighbours", lambda uuid: ("process 12 (python)", ""))
    monkeypatch.setattr(gpus, "SETTLE_S", 0.0)
    with executors.ready(None, share=True) as here:
        session = Session.planned(here.survey, ["square/33/float32"], "smoke", variants=False, timed=True, out=tmp_path)
        session.executor, session.shared = played, here.shared
        list(session.events())
    assert session.path is not None
    assert {r.shared for r in read(session.path)} == {"process 12 (python)"}
    assert "shared with process 12 (python)" in stale(session.records[0], None)
    assert "shared" not in stale(replace(session.records[0], shared=""), None)
