"""The documentation as a site: it builds without a warning, and in Chromium its links, search, dark mode and a phone's width work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support import needs

ROOT = Path(__file__).resolve().parents[1]
needs("mkdocs")
pytestmark = pytest.mark.xdist_group("site")  # which is built once
PHONE = 360  # CSS pixels


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False, env=environment)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), "strict: a warning, as of a link that leads nowhere, is an error"
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_it_asks_no_network_for_anything(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not [tag for tag in ('<script src="http', '<link rel="stylesheet" href="http', "fonts.googleapis") if tag in text], page.name


def test_a_reader_finds_a_word_reads_in_the_dark_and_on_a_phone(chromium: Any, address: str, site: Path) -> None:
    page = chromium.new_page()
    failed: list[str] = []
    page.on("requestfailed", lambda request: request.failure == "net::ERR_ABORTED" or failed.append(request.url))  # by the next page
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(f"{address}/index.html", wait_until="networkidle")
    page.click(".md-search__input")
    page.locator(".md-search__input").press_sequentially("inductor")
    page.wait_for_selector(".md-search-result__item a", timeout=10_000)
    page.click(".md-search-result__item a")
    page.wait_for_load_state()
    assert "inductor" in page.inner_text("article").lower()
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("label[for=__palette_1]")
    assert page.evaluate("document.body.getAttribute('data-md-color-scheme')") == "slate"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.set_viewport_size({"width": PHONE, "height": 740})
    for name in ("index.html", "reading.html", "kernels.html", "reference/commands.html"):
        page.goto(f"{address}/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE, f"{name} is wider than a phone"
    assert failed == []
    page.close()
