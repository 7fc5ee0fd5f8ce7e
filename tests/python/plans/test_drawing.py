"""Drawings of plans: geometry, colours, and figures against separate counts."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base.text import size_text
from ggml_backend.cli import main
from ggml_backend.cli.examples.models import prepare
from ggml_backend.profile._pictures import BareArena, BareBlock, Picture, bare_picture, drawing, page, png
from ggml_backend.profile._pictures.data import byte_ticks, copy_steps, storages, tick_text, time_tick
from ggml_backend.profile._pictures.labels import LADDER, alternatives, fitting, text_width
from ggml_backend.profile._pictures.palette import COLOURS, KINDS, SHADES, kind, style
from test_pictures import random_arena

SVG = "{http://www.w3.org/2000/svg}"
THREE = ["SIM:name=A,ops=mul_mat", "SIM:name=B,noops=mul_mat", "CPU"]
CASES = [("unet", ["CPU"]), ("llama", THREE), ("whisper", THREE), ("moe", ["SIM", "CPU"]), ("embed", ["CPU"])]
quiet = pytest.mark.filterwarnings("ignore::ggml_backend.errors.PerformanceWarning")


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]} on {len(case[1])}")
def prepared(request):
    with prepare(*request.param) as found:
        yield found


# ------------------------------------------------------------------------------------------------------------- geometry


def maps_of(svg):
    """For each map: its background, groups of blocks and labels, in pixels."""
    for plot in ET.fromstring(svg).iter(f"{SVG}svg"):
        ground = plot.find(f"{SVG}rect[@data-ground]")
        if ground is not None:
            yield plot, ground, plot.findall(f"{SVG}g[@class='blocks']/{SVG}g")


def box(rect):
    x, y, w, h = (float(rect.get(k)) for k in ("x", "y", "width", "height"))
    return x, y, x + w, y + h


def test_blocks_are_drawn_where_their_numbers_say(rng):
    arenas = [random_arena(rng, 40, "A", n_chunks=2), random_arena(rng, 25, "B")]
    picture = bare_picture("two", arenas)
    found = list(maps_of(drawing(picture, width=1200)))
    assert len(found) == 2
    for (_, ground, groups), arena in zip(found, arenas, strict=True):
        wide, top, high = (float(ground.get(k)) for k in ("width", "y", "height"))
        pieces = storages(arena.blocks)
        assert len(groups) == len(pieces)
        per_step = wide / picture.n_steps
        per_byte = high / max(max(p.bottom + p.nbytes for p in pieces), arena.peak)
        for group, piece in zip(groups, pieces, strict=True):
            x0, y0, x1, y1 = box(group.findall(f"{SVG}rect")[-1])
            wanted = (piece.lower * per_step, top + high - (piece.bottom + piece.nbytes) * per_byte,
                      piece.upper * per_step, top + high - piece.bottom * per_byte)  # fmt: skip
            assert np.allclose((x0, y0, x1, y1), wanted, atol=0.8), piece


def test_tensors_in_place_are_one_block_with_stages():
    """Three tensors in the same memory, the last one smaller, and another tensor."""
    blocks = (
        BareBlock(0, 0, 8, 64, 0, "product", "MUL_MAT", step=0),
        BareBlock(1, 0, 8, 64, 0, "scaled", "SCALE", root=0, step=3),
        BareBlock(2, 0, 8, 32, 0, "half", "GET_ROWS", root=0, step=5),
        BareBlock(3, 2, 6, 32, 64, "other", "SOFT_MAX", step=2),
    )
    svg = drawing(bare_picture("x", [BareArena("x", 96, 96, True, blocks)]), width=1000)
    ((_, ground, groups),) = maps_of(svg)
    assert [g.get("data-i") for g in groups] == ["0", "1"]
    per_step, high = float(ground.get("width")) / 8, float(ground.get("height"))
    stages = [r for r in groups[0].findall(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    spans = [(round(box(r)[0] / per_step), round(box(r)[2] / per_step)) for r in stages]
    assert spans == [(0, 3), (3, 5), (5, 8)]
    assert [round(float(r.get("height")) / high * 96) for r in stages] == [64, 64, 32]
    names = [r.find(f"{SVG}title").text.split("\n")[0] for r in stages]
    assert names == ["product", "scaled", "half"]
    classes = [r.get("class").split()[0] for r in stages]
    assert [int(c[1:]) for c in classes] == [kind("MUL_MAT"), kind("SCALE"), kind("GET_ROWS")]
    for r in stages:
        assert "product → scaled → half use the same memory in turn" in r.find(f"{SVG}title").text


@quiet
@pytest.mark.parametrize("width", [360, 800, 1600])
def test_labels_stay_in_their_blocks_and_apart(prepared, width):
    """No label is wider than its block, and labels do not overlap."""
    shown = 0
    for plot, _, groups in maps_of(drawing(prepared.picture, width=width)):
        rects = [box(r) for g in groups for r in g.findall(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
        boxes = []
        for text in plot.findall(f"{SVG}g[@class='labels']/{SVG}text"):
            x, y = float(text.get("x")) + float(text.get("dx")), float(text.get("y"))
            boxes.append((x, y - 9, x + text_width(text.text), y + 1))
        for turned in plot.findall(f"{SVG}g[@class='labels']/{SVG}svg"):
            x, y, half = float(turned.get("x")), float(turned.get("y")), text_width(turned[0].text) / 2
            boxes.append((x - 6, y - half, x + 6, y + half))
        for a in boxes:
            assert any(r[0] <= a[0] and r[1] <= a[1] + 1 and a[2] <= r[2] and a[3] <= r[3] + 1 for r in rects), a
        for a, b in itertools.combinations(boxes, 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
        shown += len(boxes)
    assert shown or width < 800


def test_labels_are_the_longest_that_fit():
    texts = alternatives("blk.12.attn_norm (reshaped)", "1.50 MiB")
    assert texts == ["blk.12.attn_norm (reshaped) · 1.50 MiB", "blk.12.attn_norm (reshaped)", "blk.12.attn_norm",
                     "12.attn_norm", "attn_norm"]  # fmt: skip
    labels = [label for label in fitting(texts, 0.1, 20) if not label.standing]
    for width in (*LADDER, 500, 777):
        at = [label.text for label in labels if label.above <= width < label.below]
        fit = [t for t in texts if text_width(t) + 8 <= width * 0.1]
        assert at == fit[:1]
    assert not fitting(texts, 0.5, 9)  # not high enough for a line
    (standing,) = fitting(texts, 0.005, 200)[-1:]
    assert standing.standing and text_width(standing.text) <= 192


@quiet
def test_page_and_svg_of_a_width_have_equal_labels(prepared):
    """Classes of labels control the page. At each width its rules show the labels of an SVG of that
    width."""
    text = page(prepared.picture)
    shown_from = {int(k): int(w) for w, k in re.findall(r"min-width:(\d+)px\)\{\.f(\d+)\{display:inline", text)}
    hidden_from = {int(k): int(w) for w, k in re.findall(r"min-width:(\d+)px\)\{\.u(\d+)\{display:none", text)}
    assert shown_from == hidden_from == {k: w for k, w in enumerate(LADDER) if k}
    found = re.findall(r'<text class="label([^"]*)"[^>]* dx=[^>]*>([^<]*)</text>', text)
    for width in (LADDER[3], LADDER[9]):
        on_page = []
        for classes, words in found:
            names = classes.split()
            above = max([shown_from[int(c[1:])] for c in names if c[0] == "f"], default=0)
            below = min([hidden_from[int(c[1:])] for c in names if c[0] == "u"], default=10**9)
            if above <= width < below:
                on_page.append(words)
        svg = drawing(prepared.picture, width=width + 96)  # with its axis and margins
        assert sorted(on_page) == sorted(re.findall(r'<text class="label"[^>]* dx=[^>]*>([^<]*)</text>', svg))
        assert on_page


# ----------------------------------------------------------------------------------------------------------------- axes


@pytest.mark.parametrize("height", [1, 5, 6, 7, 1000, 1024, 5_637_120, 3 << 30, (5 << 40) + 1])
def test_bytes_have_an_axis_in_powers_of_two(height):
    ticks = byte_ticks(height)
    step = ticks[1] if len(ticks) > 1 else 1
    assert ticks[0] == 0 and step & (step - 1) == 0
    assert ticks == [k * step for k in range(len(ticks))] and ticks[-1] <= height < ticks[-1] + step
    assert len(ticks) <= 7 and (len(ticks) >= 4 or height < 4)
    for n in ticks:
        value, unit = tick_text(n).split()
        assert float(value) * 1024 ** ["B", "KiB", "MiB", "GiB", "TiB"].index(unit) == n


def test_steps_have_ticks_that_nest():
    assert [time_tick(t) for t in (1, 2, 5, 10, 15, 50, 100, 150, 500, 1000)] == [
        1,
        1,
        5,
        10,
        5,
        50,
        100,
        50,
        500,
        1000,
    ]


@quiet
def test_ticks_of_time_do_not_touch(prepared):
    for width in (360, 800, 1600):
        for plot in ET.fromstring(drawing(prepared.picture, width=width)).iter(f"{SVG}svg"):
            ends = []
            for text in plot.findall(f"{SVG}g[@class='when']/{SVG}text"):
                x, wide = float(text.get("x")), text_width(text.text)
                left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor")]
                ends.append((left, left + wide))
            ends.sort()
            assert all(a[1] < b[0] for a, b in itertools.pairwise(ends)), ends


# -------------------------------------------------------------------------------------------------------------- colours

# Simulated colour blindness, as matrices for linear RGB (Machado, Oliveira, Fernandes 2009,
# severity 1).
EYES = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(a, b):
    dark, light = sorted(float(TO_XYZ[1] @ linear(c)) for c in (a, b))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours(theme):
    """Kinds are distinct with any colour blindness, shades are ordered by lightness, and text is
    legible (WCAG: 4.5 to 1)."""
    of = {name: pair[theme] for name, pair in COLOURS.items()}
    for name, matrix in EYES.items():
        seen = [lab(matrix @ linear(of[f"k{k}"])) for k in range(len(KINDS))]
        nearest = min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2))
        assert nearest > 15, (name, nearest)
    lightness = [lab(linear(of[f"s{k}"]))[0] for k in range(SHADES)]
    assert all(a - b > 2 for a, b in itertools.pairwise(lightness)), lightness
    for fill in [*(f"k{k}" for k in range(len(KINDS))), *(f"s{k}" for k in range(SHADES)), "bar"]:
        assert contrast(of["label"], of[fill]) >= 4.5, fill
    for name, ground in itertools.product(("ink", "soft", "accent", "focus"), ("card", "page")):
        assert contrast(of[name], of[ground]) >= 4.5, (name, ground)
    for name in ("hatch", "live", *(f"k{k}" for k in (0, 2, 3, 4, 6))):
        assert contrast(of[name], of["free"]) >= 1.5, name


def test_page_and_file_have_one_set_of_colours():
    picture = bare_picture("x", [BareArena("x", 8, 8, True, (BareBlock(0, 0, 2, 8, 0, "a", "ADD"),))])
    html, svg = page(picture), drawing(picture)
    for which, pair in COLOURS.items():
        assert f"--{which}:{pair[0]}" in html and f"--{which}:{pair[1]}" in html
    rules = set(re.findall(r"\.(k\d|free|live|bar)\{fill:(#\w+)\}", style("x")))
    for text in (html, svg):
        assert rules <= set(re.findall(r"\.(k\d|free|live|bar)\{fill:(#\w+)\}", text))
    light = drawing(picture, theme="light")
    assert "prefers-color-scheme" in svg and "prefers-color-scheme" not in light
    fills = {(c.split()[0], f) for c, f in re.findall(r'class="(k\d|free|live)" fill="(#\w+)"', light)}
    assert fills and all(COLOURS[c][0] == f for c, f in fills)
    dark = drawing(picture, theme="dark")
    assert all(COLOURS[c][1] == f for c, f in re.findall(r'class="(k\d|free|live)" fill="(#\w+)"', dark))


def test_kinds_of_operators():
    names = ["MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "ADD", "RMS_NORM", "SOFT_MAX", "ROPE", "CPY", "copy", "IM2COL", "",
             "GELU_ERF", "FLASH_ATTN_EXT", "CONCAT"]  # fmt: skip
    assert [kind(n) for n in names] == [0, 5, 5, 1, 2, 3, 3, 4, 4, 6, 7, 1, 3, 4]


# ----------------------------------------------------------------------------------------- names and numbers that agree


class Tables(HTMLParser):
    """The cells of each table of a page, by its label, without text in <small>."""

    def __init__(self, text):
        super().__init__()
        self.found, self._label, self._small, self._in = {}, "", False, False
        self.text = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "div" and "list" in (attributes.get("class") or "").split():
            self._label = attributes["aria-label"]
        if tag == "table":
            self.rows = self.found.setdefault(self._label, [])
            self.rows.append([])
        if tag == "tr":
            self.hidden = "hidden" in attributes
            self.row = []
        if tag in ("td", "th"):
            self.row.append("")
            self._in = True
        self._small = tag == "small"

    def handle_endtag(self, tag):
        if tag == "tr" and not self.hidden:
            self.rows[-1].append(self.row)
        self._in = self._in and tag not in ("td", "th")
        self._small = False

    def handle_data(self, data):
        self.text.append(data)
        if self._in and not self._small:
            self.row[-1] += data


def number(text):
    return int(text.replace(",", "")) if text else 0


@quiet
def test_tables_add_up(prepared):
    picture = prepared.picture
    tables = Tables(page(picture)).found
    (memory,) = tables["Memory by device"]
    columns = [[number(row[k]) for row in memory[1:]] for k in range(1, len(memory[0]))]
    for arena, leafs, kept, allocated, scratch, total in columns:
        assert allocated == arena + leafs + kept and total == allocated + scratch
    if len(columns) > 1:
        assert columns[-1] == [sum(c[k] for c in columns[:-1]) for k in range(6)]
    if picture.copies or len(picture.splits) > 1:
        (splits,) = tables["Splits"]
        for k in (3, 4, 5, 6):
            assert sum(number(r[k]) for r in splits[1:-1]) == number(splits[-1][k])
        assert number(splits[-1][3]) == len(prepared.graph) and number(splits[-1][5]) == len(picture.copies)
    if picture.copies:
        (copies,) = tables["Copies, the largest first"]
        assert sum(number(r[4]) for r in copies[1:-1]) == number(copies[-1][4]) == sum(c.nbytes for c in picture.copies)
    for rows in tables["Blocks that are alive at the moment"]:
        alive, gaps, top = (number(r[3]) for r in rows[-3:])
        assert sum(number(r[3]) for r in rows[1:-3]) == alive and alive + gaps == top
        bottoms = [number(r[4]) + number(r[3]) for r in rows[1:-3]]
        assert top == max(bottoms, default=0)


def figures(text):
    return re.findall(r"([\d.]+ (?:B|[KMGT]iB))", text)


@quiet
@pytest.mark.parametrize(("source", "devices"), CASES)
def test_numbers_agree_everywhere(source, devices, capsys):
    """Nodes, steps, splits, copies and peaks are equal in: repr of graph and plan, objects, JSON,
    text of the command, CSV, page, notebook and SVG."""
    arguments = ["plan", source, "--devices", *devices]
    assert main([*arguments, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    text = capsys.readouterr().out
    with prepare(source, devices) as p:
        plan, graph = p.plan, p.graph
        pages = {"page": plan.to_html(title=source), "svg": plan.to_svg(title=source), "notebook": plan._repr_html_()}
        rows = [r.split(",") for r in plan.to_csv().splitlines()[1:]]
        nodes, splits, copies = len(graph), len(plan.splits), len(plan.copies)
        counted = sum(t.op not in ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE") for t in graph.nodes)
        steps = counted + sum(c.split >= 0 for c in plan.copies)  # each copy is a step
        shown, copied = repr(plan), size_text(sum(c.nbytes for c in plan.copies))
        arenas = plan.arenas
    assert f"<Graph {nodes} nodes" in repr_of(source, devices)
    assert (written["nodes"], written["steps"], len(written["splits"]), len(written["copies"])) == (
        nodes,
        steps,
        splits,
        copies,
    )
    words = [f"{nodes} nodes", f"{steps} steps", f"{splits} split"]
    for where, content in {"repr": shown, "text": text, **pages}.items():
        for word in words:
            assert word in content.replace(",", ""), (where, word)
        assert (f"{copies} copies ({copied} in all)" if copies > 1 else f"{copies} cop") in content, where
    names = [a.backend for a in arenas]
    for k, (a, j) in enumerate(zip(arenas, written["arenas"], strict=True)):
        tops = [
            int(r[3]) + int(r[4]) for r in rows if r[7].startswith("SIM" if a.backend.startswith("SIM") else a.backend)
        ]
        assert j["peak"] == a.peak == max(tops, default=0)  # devices of the tests need no padding at the end
        assert j["total"] == a.total == a.peak + a.leafs + a.replicas + a.scratch and j["allocated"] == a.allocated
        assert f"{a.backend}: arena {size_text(a.peak)}" in shown and f"total {size_text(a.total)}" in shown
        assert f"arena {size_text(a.peak)}" in text
        for what, n in (("arena", a.peak), ("total", a.total)):
            line = next(line for line in text.splitlines() if re.match(rf"\s+(= )?{what} ", line))
            assert number(line.split()[-(len(names) + (len(names) > 1)) + k]) == n
        for where in ("svg", "notebook"):
            assert f"arena {size_text(a.peak)}," in pages[where]
        assert f"{a.peak:,} bytes: the peak of this plan" in pages["page"] or not a.blocks


def repr_of(source, devices):
    with prepare(source, devices) as p:
        return repr(p.graph)


@quiet
def test_copies_are_at_their_steps(prepared):
    """Each copy with memory in an arena is drawn at the first step of that memory."""
    picture = prepared.picture
    begins = {}
    for a in picture.arenas:
        for b in a.blocks:
            if b.op == "copy":
                begins.setdefault(b.name, []).append(b.lower)
    steps = copy_steps(picture)
    for c, step in zip(picture.copies, steps, strict=True):
        if c.reason == "input":
            assert step in begins[f"{c.dst_backend}#{c.name}"], c
    computed = {t for s in picture.splits for t in range(s.start, s.end)}
    assert len(set(steps)) == len(steps) and not computed & set(steps)
    assert computed | set(steps) == set(range(picture.n_steps))


@quiet
def test_titles_of_blocks_equal_the_graph(prepared):
    """Operator, shape, bytes, from, to and reason equal those of the graph."""
    by_name = {t.name: t for t in prepared.graph.nodes}
    svg = ET.fromstring(prepared.plan.to_svg())
    titles = [
        e.text.split("\n")
        for e in svg.iter(f"{SVG}title")
        if any(line.startswith("operator") for line in e.text.split("\n"))
    ]
    seen = 0
    for title, *lines in titles:
        about = dict(line.split(": ", 1) for line in lines)
        t = by_name.get(title)
        if t is None:  # a copy
            assert about["operator"].startswith("copy") and about["bytes"] and about["from"] and about["to"]
            continue
        assert about["operator"].startswith(f"{t.op} (")
        assert about["shape"] == f"({', '.join(map(str, t.shape))}{',' if t.ndim == 1 else ''}) {t.dtype.name}"
        source = t.sources[0] if t.sources[0].view_of is None else t.sources[0].view_of
        assert about["from"].split(", ")[0] == source.name
        assert about["reason"].startswith("runs on ")
        if "to" not in about:
            assert t.name in [o.name for o in prepared.graph.outputs] or t.op in ("CPY", "SET"), title
        seen += 1
    assert seen > 60


def test_png():
    picture = bare_picture("x", [BareArena("x", 8, 8, True, (BareBlock(0, 0, 2, 8, 0, "a", "ADD"),))])
    pytest.importorskip("resvg_py", reason="resvg-py is not installed (extra [png])")
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    import io

    for theme, scale in (("light", 1), ("dark", 2)):
        data = png(picture, width=400, theme=theme, scale=scale)
        pixels = np.asarray(image.open(io.BytesIO(data)).convert("RGB"))
        assert pixels.shape[1] == 400 * scale
        shades = {tuple(p) for p in pixels.reshape(-1, 3)}
        for name in ("card", "k1"):
            colour = COLOURS[name][theme == "dark"]
            assert tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) in shades, name


def test_plan_command_writes_a_png(tmp_path):
    pytest.importorskip("resvg_py", reason="resvg-py is not installed (extra [png])")
    (tmp_path / "in.csv").write_text("id,lower,upper,size\na,0,2,64\nb,1,3,64\n")
    drawn = {kind: tmp_path / f"out.{kind}" for kind in ("svg", "png")}
    assert main(["plan", str(tmp_path / "in.csv"), *(f"--{kind}={path}" for kind, path in drawn.items())]) == 0
    assert drawn["png"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert ET.fromstring(drawn["svg"].read_text()).tag.endswith("svg")


def test_arguments_of_pictures(tmp_path):
    plan = gb.sched.Plan(None, None, (), (), ())
    for call, message in (
        (lambda: plan.to_svg(width=100), "Plan.to_svg: width must be 240 to 20000 pixels, not 100"),
        (lambda: plan.to_svg(theme="blue"), "Plan.to_svg: theme must be one of auto, light, dark, not 'blue'"),
        (lambda: plan.to_png(theme="auto"), "Plan.to_png: a PNG has one theme"),
        (lambda: plan.to_png(scale=9), "Plan.to_png: scale must be 1 to 8, not 9"),
    ):
        with pytest.raises(gb.errors.InvalidArgumentError, match=message):
            call()
    with pytest.raises(TypeError, match=r"Plan\.to_svg: title must be a str"):
        plan.to_svg(title=3)
    ET.fromstring(plan.to_svg(tmp_path / "empty.svg"))
    assert isinstance(Picture("", 0, ()).n_steps, int)
