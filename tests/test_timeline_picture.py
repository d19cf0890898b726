"""The timeline's picture: what it shows, that the page needs nothing but itself, and that it escapes what a trace says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from invoking import invoke
from small_traces import ONE_STREAM, TWO_STREAMS, kernel, trace, written
from support import needs

from opwise.timeline import charts, drawing, picture
from opwise.timeline.analysis import Timeline
from opwise.timeline.trace import parse

HOSTILE = '</script><img src="http://example.invalid/x"><b>$k$</b>'


def test_a_picture_by_matplotlib(tmp_path: Path) -> None:
    needs("matplotlib")
    one, two = (written(tmp_path / f"{name}.json", trace(events)) for name, events in (("one", ONE_STREAM), ("two", TWO_STREAMS)))
    result = invoke("timeline", "--from", str(one), "--against", str(two), "--plot", str(tmp_path / "x.png"))
    assert result.exit_code == 0, result.output
    data = (tmp_path / "x.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000
    result = invoke("timeline", "--from", str(one), "--plot", str(tmp_path / "x.svg"))
    assert result.exit_code == 0, result.output
    assert "<svg" in (tmp_path / "x.svg").read_text()


def test_panels_show_every_launch_activity_and_gap() -> None:
    one = Timeline.of(parse("one", trace(ONE_STREAM)), "A: one")
    shares, over_time, queue = picture.panels([one])
    assert {name: len(bars) for name, bars in over_time.bars.items()} == {
        "launch call": 5, "kernel": 5, "copy or fill": 1, "host wait": 2, "kernel wait": 2, "other": 1}  # fmt: skip
    host = over_time.bars["host wait"]
    assert [(bar.start, bar.length) for bar in host] == [(31.0, 11.0), (90.0, 130.0)], "us since the first launch at 10"
    assert sum(bar.length for bars in shares.bars.values() for bar in bars) == pytest.approx(100.0)
    assert queue.steps["stream 7"][:3] == [(0.0, 1.0), (5.0, 2.0), (10.0, 1.0)]
    low, high = over_time.window
    assert low < 0 < 237 < high, "a short trace is seen whole"


def page_data(page: str) -> Any:
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(data)


def test_a_page_holds_all_it_needs_and_escapes_what_traces_say() -> None:
    needs("plotly")
    timeline = Timeline.of(parse("x", trace([kernel(HOSTILE, 0, 5, None)])), HOSTILE)
    page = drawing.page(picture.panels([timeline]), HOSTILE)
    assert "default-src 'none'" in page
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="', page.split("<script>")[0])
    assert HOSTILE not in page
    assert "<img" not in json.dumps(page_data(page))
    assert "&lt;img" in json.dumps(page_data(page)), "Plotly shows it as text"


def test_a_page_opens_from_disk_and_draws(chromium: Any, tmp_path: Path) -> None:
    needs("plotly")
    timelines = [Timeline.of(parse(name, trace(events)), f"{name}: {HOSTILE}") for name, events in (("A", ONE_STREAM), ("B", TWO_STREAMS))]
    drawing.write(picture.panels(timelines), tmp_path / "x.html", "two")
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto((tmp_path / "x.html").as_uri())
    page.wait_for_selector(".bars .point")
    assert errors == []
    drawn = page.evaluate("document.querySelectorAll('.bars .point').length")
    whole = [bars for panel in picture.panels(timelines) for bars in panel.bars.values()]
    assert drawn == sum(len(bars) for bars in whole)
    assert page.evaluate("document.querySelectorAll('#picture img, #picture b b').length") == 0
    page.close()


def test_a_page_of_charts_opens_from_disk_and_draws(chromium: Any, tmp_path: Path) -> None:
    needs("plotly")
    timeline = Timeline.of(parse("x", trace([*ONE_STREAM, kernel(HOSTILE, 250, 5, None)])), HOSTILE)
    charts.write(charts.charts({HOSTILE: timeline}), tmp_path / "x.html", HOSTILE)
    assert HOSTILE not in (tmp_path / "x.html").read_text()
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto((tmp_path / "x.html").as_uri())
    page.wait_for_selector(".pielayer .slice")
    assert errors == []
    assert page.evaluate("document.querySelectorAll('.bars .point').length") > 5
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    page.close()
