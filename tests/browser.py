"""Headless Chromium for the tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "there is no Chromium: apt install chromium"
PICTURES = os.environ.get("OPWISE_SCREENSHOTS")  # the folder that takes pictures for the documents
# Without the flags Chromium calls home at every start, and waits for an answer where there is no network.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """conftest.py gives it to all tests."""
    if CHROMIUM is None:
        pytest.skip(MISSING)
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'opwise[test]'")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()
