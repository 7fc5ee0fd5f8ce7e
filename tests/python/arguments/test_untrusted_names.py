"""Names with characters that are special in HTML, SVG, DOT, JSON, CSV or a terminal appear as text
everywhere.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import unicodedata
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import ggml_backend as gb
from ggml_backend._base import text as escape
from ggml_backend.cli import main
from ggml_backend.profile._pictures import read_table

NAMES = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)", "<!--", "]]>", "&lt;b&gt;",
    "</title><b>", "\x1b[31mred\x1b]0;title\x07", "\x9b31m", "a\rb\nc\td", "\u202eabc\u2066", "\u2028\u2029",
    "\udcff\udc80", "=1+1", "+cmd|'/c'!A1", "@SUM(1)", "-2",
    "'quoted", 'a"b', "a,b;c", "%n%s", "\\N{back}\\", "{|}", "名前", "é" * 40, "\u200b\ufeff", "\x7f", "plain",
]  # fmt: skip

#: Elements and attributes of labels in pictures.
ATTRIBUTES = {
    "class", "fill", "x", "y", "dx", "text-anchor", "transform", "overflow", "style", "font-size", "font-weight",
    "width", "height",
}  # fmt: skip

anything = st.one_of(
    st.sampled_from(NAMES),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
)


def escaped_characters(text: str) -> list[str]:
    """Characters that move a cursor, change colours, or hide or reverse text around them."""
    return [c for c in text if c != "\n" and not c.isprintable()]


class Page(HTMLParser):
    """Elements with the names of their attributes, the scripts, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.texts: list[str] = []
        self.values: list[str] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = tuple(name for name, _ in attrs)
        # the number of labels depends on the names
        if tag == "text" or (tag == "svg" and "overflow" in names):
            assert set(names) <= ATTRIBUTES, names
        else:
            self.elements.append((tag, names))
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def unknown_decl(self, data: str) -> None:
        self.comments.append(data)


class Shown:
    """A graph, its plan and trace with given names."""

    def __init__(self, names: list[str], devices: tuple[str, str] = ("A", "B")) -> None:
        self.ctx = gb.Context()
        a, b = (gb.Backend(f"SIM:name={d}") for d in devices)
        x = self.ctx.tensor((8, 8), name=names[0])
        y = gb.ops.relu(x).named(names[1])
        z = (y + y).named(names[2])
        self.graph = self.ctx.graph(z)
        self.sched = gb.Scheduler([a, b])
        self.sched.set_backend(y, b)
        self.plan = self.sched.prepare(self.graph)
        x.set(1.0)
        with self.sched.trace() as self.trace:
            self.sched.compute(self.graph)
        self.names = [x.name, y.name, z.name]  # names may be cut


def markup_of(shown: Shown, title: str) -> list[str]:
    return [shown.graph._repr_html_(), shown.plan._repr_html_(), shown.plan.to_html(title=title)]


@pytest.fixture(scope="module")
def harmless() -> list[Page]:
    return [Page(text) for text in markup_of(Shown(["a", "b", "c"]), "title")]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(anything, min_size=4, max_size=4))
@example(names=["a", "\udcff", "b\udcff\udc80", "\udc80"])  # bytes of a file that are not UTF-8
def test_names_add_no_elements(harmless: list[Page], names: list[str]) -> None:
    """For any names a parser finds the same elements and attributes, and the names as text."""
    shown = Shown(names)
    texts = markup_of(shown, names[3])
    for text, before in zip(texts, harmless, strict=True):
        page = Page(text)
        assert page.elements == before.elements
        assert page.comments == before.comments
    traced = Page(shown.trace.to_svg(title=names[3]))  # the number of ticks depends on the duration
    assert {tag for tag, _ in traced.elements} <= {tag for tag, _ in harmless[1].elements}
    assert {a for _, attributes in traced.elements for a in attributes} <= {
        *(a for _, attributes in harmless[1].elements for a in attributes), "data-bar", "stroke-width", "data-arrow",
    }  # fmt: skip
    table, page = Page(texts[0]), Page(texts[2])
    assert all(escape.line(name) in table.texts for name in shown.names[1:])
    drawn = {line for text in page.texts for line in text.split("\n")}
    # the page names computed and copied tensors; white space in names becomes one space
    assert {" ".join(escape.line(" ".join(n.split())).split()) or "(no name)" for n in shown.names[1:]} <= {
        " ".join(line.split()) for line in drawn
    }
    script = re.search(r'<script type="application/json" id="plan">(.*?)</script>', texts[2], re.DOTALL)
    assert script is not None and script[1].isascii() and not set("<>&") & set(script[1])
    for text in texts[:2]:
        assert not escaped_characters(text)


@settings(max_examples=40, deadline=None)
@given(names=st.lists(anything, min_size=3, max_size=3))
def test_other_forms(names: list[str]) -> None:
    shown = Shown(names)
    assert not escaped_characters(shown.plan.to_text())
    trace = json.loads(shown.trace.to_json())
    assert shown.trace.to_json().isascii()
    assert trace["traceEvents"]
    rows = list(csv.DictReader(io.StringIO(shown.plan.to_csv(), newline="")))
    assert rows
    for row in rows:
        assert not any(
            v.startswith(("=", "+", "-", "@", "\t", "\r")) for v in row.values() if not re.fullmatch("-?[0-9.]+", v)
        )
    for text in (repr(shown.graph), repr(shown.graph.nodes[0]), repr(shown.plan)):
        assert not escaped_characters(text)


# Graphviz: each line has one of these forms. Special characters in labels are escaped.
LABEL = r'"(?:[^"\\]|\\.)*"'
DOT = re.compile(
    r'digraph G {|  newrank = true;|  rankdir = LR;|}|  "0x[0-9a-f]+" \[style=filled; fillcolor=\w+; shape=record;'
    rf" label=({LABEL}); \]"
    r'|  "0x[0-9a-f]+":[xg] -> "0x[0-9a-f]+":[xg] \[arrowhead=\w+; style=\w+; label="src \d"; \]'
)


@settings(max_examples=40, deadline=None)
@given(names=st.lists(anything, min_size=3, max_size=3))
def test_dot(names: list[str]) -> None:
    shown = Shown(names)
    text = shown.graph.to_dot()
    text.encode()  # no surrogates
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not [
        c
        for c in text
        if (c != "\n" and unicodedata.category(c) in ("Cc", "Zl", "Zp")) or unicodedata.bidirectional(c) in turning
    ]
    for line in text.splitlines():
        assert DOT.fullmatch(line), line
    labels = [m[1] for line in text.splitlines() if (m := DOT.fullmatch(line)) and m[1]]
    assert len(labels) == 3
    for label in labels:
        bare = re.sub(r"\\.", "", label[1:-1]).replace("&amp;", "")
        assert bare.count("|") == (1 if label.startswith('"<x>') else 2), label
        assert "&" not in bare and "{" not in bare


@given(st.text())
def test_lines_print(text: str) -> None:
    shown = escape.line(text)
    assert not escaped_characters(shown) and "\n" not in shown
    shown.encode()
    assert escape.line(shown) == shown
    assert escape.uncell(escape.cell(text)) == text


def test_tables_are_read_back(tmp_path: Path) -> None:
    for i in range(0, len(NAMES) - 3, 3):
        shown = Shown(NAMES[i : i + 3])
        shown.plan.to_csv(tmp_path / "plan.csv")
        names = {block.name for rows in read_table(tmp_path / "plan.csv").values() for _, block in rows}
        wanted = {n.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for n in shown.names}
        assert names & wanted, (names, shown.names)


def test_long_graphs_are_cut() -> None:
    """5,000 nodes: the first and last ones, and the number of omitted ones."""
    ctx = gb.Context()
    y = ctx.tensor((4,), name="x")
    for i in range(5000):
        y = gb.ops.relu(y).named(f"n{i}")
    text = ctx.graph(y)._repr_html_()
    assert len(text) < 20_000
    page = Page(text)
    assert {"n0", "n49", "n4950", "n4999", "... 4900 more ..."} <= set(page.texts)
    assert not {"n50", "n4949"} & set(page.texts)
    for n in (1, 99, 100, 101):
        with gb.Context() as other:
            z = other.tensor((4,))
            for _ in range(n):
                z = gb.ops.relu(z)
            rows = [tag for tag, _ in Page(other.graph(z)._repr_html_()).elements if tag == "tr"]
            assert len(rows) == 1 + min(n, 101)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    with gb.gguf.Writer(path) as writer:
        for i, name in enumerate(NAMES):
            writer.add(f"key.{i}.{name}", name).add_tensor(name[:60], np.ones((4, 32), np.float32))
        writer.add("list", NAMES)
    return path


@pytest.mark.parametrize(
    "arguments",
    [["info"], ["dump"], ["info", "--json"], ["check"], ["quantize", "--type", "q8_0"], ["dump", "--values"]],
)
def test_commands(model: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    action, *rest = arguments
    out = [str(model.with_suffix(".out"))] if action == "quantize" else []
    assert main(["gguf", action, str(model), *out, *rest]) == 0
    shown = capsys.readouterr()
    assert not escaped_characters(shown.out) and not escaped_characters(shown.err)
    if "--json" in arguments:
        names = [t["name"] for t in json.loads(shown.out)["tensor list"]]
        assert names == [n[:60] for n in NAMES]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_terminals_of_other_encodings(model: Path, encoding: str) -> None:
    command = [sys.executable, "-m", "ggml_backend", "gguf", "info", str(model)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout and b"Traceback" not in done.stderr


def test_errors_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sick.gguf"
    with gb.gguf.Writer(path) as writer:
        writer.add_tensor("\x1b[2Jsick", np.array([np.nan], np.float32)).add_tensor(
            "\x1b[31mq", np.ones((2, 32), np.float32), "q8_0"
        )
    for arguments in (
        ["gguf", "check", str(path)], ["gguf", "info", str(tmp_path / "\x1b[1mabsent\n")],
        ["gguf", "dump", str(path), "\x1b*x"], ["plan", str(path)],
        ["gguf", "quantize", str(path), str(path) + "2", "--type", "q4_0"], ["bench", "--compare", "\x1b[3mx"],
        ["calibrate", "\x1b[4m"],
    ):  # fmt: skip
        assert main(arguments) == 1, arguments
        shown = capsys.readouterr()
        assert shown.err and not escaped_characters(shown.err) and not escaped_characters(shown.out)
        assert len(shown.err.splitlines()) == 1, shown.err


def test_messages_of_names() -> None:
    ctx = gb.Context()
    x = ctx.tensor((3,), name="\x1b[31m\n")
    with pytest.raises(gb.GgmlError) as caught:
        x.numpy()
    assert not escaped_characters(str(caught.value))
