"""A recorded trace opens in a real viewer: speedscope, from npm, in headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import CHROMIUM, MISSING, QUIET
from unpacking import unpack

from opwise.ops.spec import Workload
from opwise.profiling.capture import capture

VIEWER = "speedscope@1.25.0"
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason=MISSING), pytest.mark.xdist_group("trace_viewer")]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    capture("torch_eager/softmax", Workload.parse("softmax/64x64/float32"), torch.device("cpu"), calls=3, path=path)
    return path


@pytest.fixture(scope="module")
def viewer(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[tuple[str, str]]]]:
    """The viewer's page, and what it says."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'opwise[test]'")
    if shutil.which("npm") is None:
        pytest.skip("npm, which fetches the viewer, is not on PATH: install Node.js")
    folder = tmp_path_factory.mktemp("viewer")
    fetched = subprocess.run(["npm", "pack", "--silent", VIEWER], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    if fetched.returncode:
        pytest.skip(f"npm cannot fetch {VIEWER}: {(fetched.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    unpack(next(folder.glob("*.tgz")), folder)
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=[*(flag for flag in QUIET if flag != "--disable-gpu"), "--enable-unsafe-swiftshader"]
        )  # it draws by WebGL
        page = browser.new_page()
        said: list[tuple[str, str]] = []
        page.on("console", lambda message: said.append((message.type, message.text)))
        page.on("pageerror", lambda error: said.append(("error", str(error))))
        page.goto((folder / "package" / "dist" / "release" / "index.html").as_uri())
        page.wait_for_selector("input[type=file]", state="attached", timeout=20_000)
        yield page, said
        browser.close()


def test_a_trace_opens_in_speedscope(viewer: tuple[Any, list[tuple[str, str]]], trace: Path) -> None:
    page, said = viewer
    said.clear()
    page.set_input_files("input[type=file]", str(trace))
    page.wait_for_function(f"document.title.startsWith('{trace.name}')", timeout=20_000)
    assert not [text for kind, text in said if kind == "error"]
    assert any("Trace Event Format" in text for _, text in said)
    page.get_by_text("Sandwich").click()  # the view that lists the frames by name
    for frame in ("opwise: call", "aten::softmax"):  # the rows come after the click, when the browser next draws
        page.get_by_text(frame).first.wait_for(timeout=20_000)
