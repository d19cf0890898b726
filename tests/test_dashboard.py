"""The dashboard in headless Chromium: recorded figures of an H100 on seven commits, one kernel of which is 5 % slower from the fifth on.

OPWISE_SCREENSHOTS=docs writes the pictures that docs/history.md shows, those of the grid and of one op from the recorded history itself.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, MISSING, PICTURES
from small_history import SmallHistory
from support import needs

from opwise.backends import BACKENDS
from opwise.ops import OPS

needs("asv", "playwright.sync_api")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dashboard"), pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]

ROOT = Path(__file__).resolve().parents[1]
MACHINE = "nvidia-h100-80gb-hbm3"
RECORDED = sorted((ROOT / "results" / "asv" / MACHINE).glob("*-*.json"))
SLOWED, BY, SINCE, COMMITS = ("softmax.Softmax.track_kernel_cold", "'triton_jit'"), 1.05, 4, 7


def slowed(record: dict[str, Any], commit: str, index: int, by: float) -> dict[str, Any]:
    """The recorded results as if they were those of the `index`-th commit."""
    copy = json.loads(json.dumps(record))
    copy |= {"commit_hash": commit, "date": 1_790_000_000_000 + 86_400_000 * index}
    name, backend = SLOWED
    values, params = copy["results"][name][0], copy["results"][name][1]
    for i, cell in enumerate(itertools.product(*params)):
        if cell[0] == backend and values[i] is not None:
            values[i] *= by
    return dict(copy)


def kept(folder: Path, commit: str, code: str) -> None:
    """What the sweep of a commit keeps of the slowed cells, by which the page tells what changed."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = {
        f"softmax/triton_jit/{shape}/{dtype}": {"source": commit, "code": code, "figures": {}}
        for shape in softmax_shapes() for dtype in ("float32", "float16", "bfloat16")
    }  # fmt: skip
    data = {"commit": commit, "versions": {"torch": "2.11", "driver": "580"}, "control": "", "cells": cells}
    (folder / f"{commit[:8]}.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository with its published dashboard, and its commits in order."""
    made = SmallHistory(tmp_path_factory.mktemp("dashboard"))
    commits = [made.commit(f"commit {i}") for i in range(COMMITS)]
    results = made.folder / "results" / "asv"
    shutil.copytree(ROOT / "results" / "asv", results, ignore=shutil.ignore_patterns("*-inplace-*"))
    shutil.rmtree(results / "compile-only", ignore_errors=True)
    record = json.loads(RECORDED[-1].read_text())
    for i, commit in enumerate(commits):
        text = json.dumps(slowed(record, commit, i, BY if i >= SINCE else 1.0))
        (results / MACHINE / f"{commit[:8]}-{record['env_name']}.json").write_text(text)
        kept(made.folder / "results/history" / MACHINE, commit, "slowed" if i >= SINCE else "as it was")
    fetched = made.run("asv_offline.py")
    if fetched.returncode:
        pytest.skip(f"asv's scripts cannot be had: {fetched.stderr.strip()}")
    done = made.run("-m", "asv", "publish")
    assert done.returncode == 0, done.stdout + done.stderr
    return made.folder, commits


def served(folder: Path) -> Iterator[str]:
    """`asv preview` of a folder, until the test is done."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "asv", "preview", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="module")
def site(planted: tuple[Path, list[str]]) -> Iterator[str]:
    yield from served(planted[0])


@pytest.fixture
def page(chromium: Any, site: str) -> Iterator[Any]:
    """A page that must ask no other host for anything and raise nothing."""
    opened = chromium.new_page(viewport={"width": 1400, "height": 900})
    abroad: list[str] = []
    raised: list[str] = []
    opened.on("request", lambda request: abroad.append(request.url) if not request.url.startswith((site, "data:")) else None)
    opened.on("pageerror", lambda error: raised.append(str(error)))
    yield opened
    opened.close()
    assert abroad == [], "the dashboard is whole"
    assert raised == []


def series(page: Any) -> list[dict[str, Any]]:
    """What the plot draws: label, and points with a finite place."""
    page.wait_for_function("window.jQuery && $('#main-graph').data('plot')", timeout=20_000)
    return list(
        page.evaluate(
            "() => $('#main-graph').data('plot').getData().map(s => ({label: s.label, points: s.datapoints.points.filter((v, i) => "
            "i % s.datapoints.pointsize == 0 && Number.isFinite(v) && Number.isFinite(s.datapoints.points[i + 1])).length}))"
        )
    )


def picture(page: Any, name: str) -> None:
    if PICTURES:
        page.screenshot(path=str(ROOT / PICTURES / f"{name}.png"))


def test_the_grid_shows_every_op(page: Any, site: str) -> None:
    page.goto(site)
    page.wait_for_selector("#summarygrid-display canvas", timeout=20_000)
    text = page.inner_text("#summarygrid-display")
    for op in OPS:
        assert f"{op.capitalize()}.track_kernel_cold" in text
        assert f"{op.capitalize()}.track_call_cost" in text


def test_one_op_shows_five_backends_on_one_plot_over_commits_and_over_shapes(page: Any, site: str) -> None:
    page.goto(f"{site}#softmax.Softmax.track_kernel_cold?p-shape='4096x4096'&p-dtype='float16'")
    over_commits = series(page)
    assert [s["points"] for s in over_commits] == [COMMITS] * len(BACKENDS)
    for backend in BACKENDS:
        assert sum(backend in s["label"] for s in over_commits) == 1, over_commits
    page.get_by_role("link", name="shape", exact=True).or_(page.get_by_role("button", name="shape", exact=True)).first.click()
    page.wait_for_function("location.hash.includes('x-axis=shape')", timeout=10_000)
    shapes = len(softmax_shapes())
    for _ in range(200):  # the address changes at once, the plot only when its figures have come
        over_shapes = series(page)
        if {s["points"] for s in over_shapes} == {shapes}:
            break
        page.wait_for_timeout(100)
    assert len(over_shapes) == len(BACKENDS)
    assert {s["points"] for s in over_shapes} == {shapes}, "a bar for each shape and backend"


def softmax_shapes() -> list[str]:
    found = re.search(r'"softmax": \[(.*?)\]', (ROOT / "benchmarks" / "_parameters.py").read_text())
    assert found
    return re.findall(r'"(.*?)"', found[1])


def test_a_planted_regression_shows_at_its_commit_and_no_other(page: Any, site: str, planted: tuple[Path, list[str]]) -> None:
    _, commits = planted
    page.goto(f"{site}#/regressions")
    page.wait_for_selector("#regressions-body table tbody tr", timeout=20_000)
    rows = page.locator("#regressions-body table tbody tr").all_inner_texts()
    assert rows
    for row in rows:
        assert SLOWED[0] in row
        assert "triton_jit" in row
        assert commits[SINCE][:8] in row, rows
        assert "changed: the machine code" in row, "what changed there"
    picture(page, "history-regressions")
    page.locator("#regressions-body table tbody a[href^='commits/']").first.click()
    page.wait_for_selector("pre", timeout=20_000)
    assert f"commit {SINCE}" in page.locator("pre").first.inner_text(), "each entry leads to what was committed"


@pytest.mark.skipif(not PICTURES, reason="pictures are taken only where OPWISE_SCREENSHOTS says where to put them")
def test_pictures_of_the_recorded_history(chromium: Any) -> None:
    for command in (["asv_offline.py"], ["-m", "asv", "publish"]):
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
    for address in served(ROOT):
        opened = chromium.new_page(viewport={"width": 1400, "height": 900})
        for name, place in {
            "history-grid": "",
            "history-matmul": f"#matmul.Matmul.track_kernel_cold?machine={MACHINE}&p-shape='4096x4096x4096'&p-dtype='bfloat16'",
            "history-shapes": f"#softmax.Softmax.track_kernel_cold?machine={MACHINE}&x-axis=shape&p-dtype='float16'",
        }.items():
            opened.goto(address + place)
            opened.wait_for_timeout(3000)
            picture(opened, name)
