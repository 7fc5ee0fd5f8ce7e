"""Pictures of traces against their events."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend.cli.examples.graphs import build
from ggml_backend.profile._pictures.labels import text_width
from ggml_backend.profile._pictures.palette import COLOURS

SVG = "{http://www.w3.org/2000/svg}"
pytestmark = pytest.mark.filterwarnings("ignore::ggml_backend.errors.PerformanceWarning")


@pytest.fixture(scope="module")
def trace():
    """The trace of an encoder whose products run on a separate device."""
    sim, cpu = gb.Backend("SIM:name=A,ops=mul_mat"), gb.Backend("CPU", n_threads=2)
    _, graph = build("embed")
    with gb.Scheduler([sim, cpu]) as sched:
        sched.allocate(graph)
        for t in graph.leafs:
            t.set(np.zeros(t.shape, np.int32) if t.dtype is gb.int32 else 0.01)
        with sched.profile(), sched.trace() as found:
            sched.compute(graph)
    return found


def test_bars_and_arrows_are_the_events(trace):
    root = ET.fromstring(trace.to_svg(width=1200))
    bars = root.findall(f".//{SVG}rect[@data-bar]")
    arrows = root.findall(f".//{SVG}g[@data-arrow]")
    copies = [e for e in trace.events if e.kind in ("copy", "write-back")]
    operators = [o for o in trace._operators if not o.lane.endswith(": split")]
    assert len(bars) == len(trace.events) + len(operators) and operators
    assert len(arrows) == sum(e.source != e.backend for e in copies)
    begin, end = min(e.start_ns for e in trace.events), max(e.end_ns for e in trace.events)
    wide = 1200 - 96
    splits = {}
    for bar in bars:
        title = bar.find(f"{SVG}title").text
        if found := re.match(r"split (\d+): ", title):
            splits[int(found[1])] = bar
    for e in trace.events:
        if e.kind == "compute":
            x, w = (float(splits[e.split].get(k)) for k in ("x", "width"))
            assert abs(x - wide * (e.start_ns - begin) / (end - begin)) < 0.2
            assert abs(w - max(wide * (e.end_ns - e.start_ns) / (end - begin), 0.5)) < 0.2
    for arrow in arrows:
        title = arrow.find(f"{SVG}title").text
        assert "bytes: " in title and "from: " in title and "to: " in title and "reason: " in title
    text = "".join(root.itertext())
    copied = sum(e.nbytes for e in copies)
    assert f"{len(trace.events)} events" in text and f"{len(copies)} copies (" in text and copied


def test_ticks_have_units_and_distance(trace):
    for width in (360, 800, 1600):
        root = ET.fromstring(trace.to_svg(width=width))
        (unit,) = {t.text for t in root.iter(f"{SVG}text")} & {"ns", "µs", "ms", "s"}
        ends = []
        for text in root.findall(f".//{SVG}g[@class='when']/{SVG}text"):
            x, room = float(text.get("x")), text_width(text.text)
            left = {"start": x, "middle": x - room / 2, "end": x - room}[text.get("text-anchor")]
            ends.append((left, left + room))
        assert len(ends) >= 2 and unit
        assert all(a[1] < b[0] for a, b in itertools.pairwise(sorted(ends)))


def test_page_and_notebook(trace, tmp_path):
    page = trace.to_html(tmp_path / "trace.html", title="a <run>")
    assert (tmp_path / "trace.html").read_text() == page
    assert "<title>a &lt;run&gt;</title>" in page and page.count("data-bar=") == trace.to_svg().count("data-bar=")
    ET.fromstring(trace._repr_html_())
    assert trace.to_svg(tmp_path / "trace.svg", theme="dark") + "\n" == (tmp_path / "trace.svg").read_text()


def test_pixels_are_the_drawing(trace, tmp_path):
    pytest.importorskip("resvg_py", reason="the extra [png] is not installed")
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for theme in ("light", "dark"):
        written = trace.to_png(tmp_path / "trace.png", width=500, theme=theme, scale=3)
        assert (tmp_path / "trace.png").read_bytes() == written
        with image.open(tmp_path / "trace.png") as pixels:
            high = float(ET.fromstring(trace.to_svg(width=500)).get("height"))
            assert pixels.width == 1500 and abs(pixels.height - 3 * high) <= 3
            shades = {colour[:3] for _, colour in pixels.getcolors(1 << 24)}
        card = COLOURS["card"][theme == "dark"]
        assert tuple(int(card[i : i + 2], 16) for i in (1, 3, 5)) in shades
    for call, message in (
        (lambda: trace.to_png(theme="auto"), "one theme"),
        (lambda: trace.to_png(scale=0), "scale must be"),
        (lambda: trace.to_png(width=10**6), "width must be"),
    ):
        with pytest.raises(gb.errors.InvalidArgumentError, match=rf"Trace\.to_png: .*{message}"):
            call()


def test_empty_traces_and_wrong_arguments(trace, cpu):
    with gb.Scheduler([cpu]) as sched, sched.trace() as nothing:
        pass
    ET.fromstring(nothing.to_svg())
    assert "0 events" in nothing.to_html()
    with pytest.raises(gb.errors.InvalidArgumentError, match=r"Trace\.to_svg: width must be 240"):
        trace.to_svg(width=1)
    with pytest.raises(TypeError, match=r"Trace\.to_html: title must be a str"):
        trace.to_html(title=1)
