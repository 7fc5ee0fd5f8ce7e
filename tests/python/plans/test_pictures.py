"""Pictures of memory plans, against a count of bytes one moment at a time."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import ggml_backend as gb
from ggml_backend._base.text import size_text
from ggml_backend.cli import main
from ggml_backend.profile._pictures import (
    BareArena,
    BareBlock,
    Picture,
    bare_picture,
    drawing,
    notebook,
    page,
    read_table,
    text_map,
    write_table,
)
from ggml_backend.profile._pictures.data import bases, chains, curve, peak_moment, storages, verdict
from small_plans import Copy, Split

HOSTILE = [
    '</script><img src=x onerror="alert(1)">',
    "<!--<script>",
    'a,"b"\nc',
    "a&amp;<b>'",
    "\u2028",
    "\ud800",
    "\x1b[31mred",
    "",
]


def random_arena(rng, n, name="X", n_chunks=1, in_place=True):
    lower = rng.integers(0, 60, n)
    upper = lower + rng.integers(1, 20, n)
    size = rng.integers(1, 5000, n)
    plan = gb.planning.plan_memory(lower, upper, size, budget_ms=0)
    blocks = [
        BareBlock(
            i,
            int(lower[i]),
            int(upper[i]),
            int(size[i]),
            int(plan.offsets[i]),
            f"t{i}",
            "ADD",
            name,
            int(rng.integers(0, n_chunks)),
        )
        for i in range(n)
    ]
    if in_place:
        for i in range(0, n, 5):  # starts when its root ends
            b = blocks[i]
            blocks.append(
                BareBlock(n + i, b.upper, b.upper + 3, b.nbytes, b.offset, f"in place {i}", "RELU", name, b.chunk, b.id)
            )
    return BareArena(name, plan.peak, plan.lower_bound, plan.proved, tuple(blocks))


def hostile_picture():
    blocks = tuple(
        BareBlock(i, i, i + 2, 64, 64 * (i % 2), name, HOSTILE[i % 3], HOSTILE[0]) for i, name in enumerate(HOSTILE)
    )
    splits = (Split(0, HOSTILE[0], tuple(HOSTILE), 0, len(HOSTILE), 1),)
    copies = (Copy(HOSTILE[0], HOSTILE[1], HOSTILE[0], 64, 0, HOSTILE[1]),)
    return Picture(HOSTILE[0], len(HOSTILE), (BareArena(HOSTILE[0], 128, 128, True, blocks),), splits, copies)


class Elements(HTMLParser):
    """The elements with attributes of a page, and the contents of its scripts, from an HTML
    parser."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts, self.title, self._inside = [], [], "", ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        if self._inside == "title" and all(tag != "body" for tag, _ in self.found):
            self.title += data


def peaks_of_page(text):
    return [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) bytes: the peak of this plan", text)]


def test_curve_counts_live_bytes(rng):
    for _ in range(20):
        arena = random_arena(
            rng, int(rng.integers(1, 50)), n_chunks=int(rng.integers(1, 4)), in_place=bool(rng.integers(0, 2))
        )
        base = bases(arena.blocks)
        moments = curve(storages(arena.blocks))
        times = [m.time for m in moments]
        assert times == sorted(set(times))
        for t in range(-1, 100):
            alive = [b for b in arena.blocks if b.lower <= t < b.upper]
            live, top = (
                sum(b.nbytes for b in alive),
                max((base[b.chunk] + b.offset + b.nbytes for b in alive), default=0),
            )
            seen = [m for m in moments if m.time <= t][-1:]
            assert (live, top) == ((seen[0].live, seen[0].top) if seen else (0, 0))
        assert [m.live for m in moments if m.time == peak_moment(moments)] == [max(m.live for m in moments)]


def test_shared_memory_counts_once():
    root, over = BareBlock(7, 0, 5, 100), BareBlock(9, 3, 8, 60, root=7)  # alive together from 3 to 5
    assert chains([root, over]) == [0, 0]
    (piece,) = storages([root, over])
    assert (piece.lower, piece.upper, piece.nbytes) == (0, 8, 100)
    assert [(m.time, m.live) for m in curve([piece])] == [(0, 100), (8, 0)]
    third = BareBlock(11, 8, 9, 60, root=9)
    assert chains([third, over, root]) == [2, 2, 2]
    assert chains([BareBlock(1, 0, 1, 1, root=5)]) == [0]  # its root is in another arena


def test_chunks_are_stacked():
    blocks = [BareBlock(0, 0, 1, 10), BareBlock(1, 0, 1, 20, 10, chunk=2), BareBlock(2, 0, 1, 5, chunk=1)]
    assert bases(blocks) == [0, 10, 15, 45]
    assert [(m.live, m.top) for m in curve(storages(blocks))] == [(35, 45), (0, 0)]


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (20 << 20, "20 MiB"), (3 << 40, "3.00 TiB")],
)
def test_sizes(n, text):
    assert size_text(n) == text


def test_verdict():
    block = BareBlock(0, 0, 1, 1)
    assert verdict(BareArena("X", 10, 10, True, (block,))) == "optimal: at the lower bound"
    assert verdict(BareArena("X", 11, 10, True, (block,))) == "10.00 % above the lower bound, proved optimal"
    assert verdict(BareArena("X", 11, 10, False, (block,))) == "10.00 % above the lower bound, not proved optimal"
    assert verdict(BareArena("X", 0, 0, True, ())) == "empty"


def test_csv_round_trip(rng, tmp_path):
    arenas = [random_arena(rng, 30, "SIM0"), random_arena(rng, 20, 'a,"b"\n', n_chunks=2)]
    path = tmp_path / "plan.csv"
    text = write_table(arenas, path)
    assert path.read_bytes().decode() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == ["id", "lower", "upper", "size", "offset", "name", "op", "backend", "arena", "root"]
    assert len(rows) == len({r["id"] for r in rows}) == sum(len(a.blocks) for a in arenas)
    blocks = [b for a in arenas for b in a.blocks]
    for row, b in zip(rows, blocks, strict=True):
        assert [int(row[k]) for k in ("lower", "upper", "size", "offset")] == [b.lower, b.upper, b.nbytes, b.offset]
        assert (row["name"], row["op"], row["backend"]) == (b.name, b.op, b.backend)
        assert (row["root"] != "") == (b.root is not None)
        if row["root"]:
            root = next(r for r in rows if r["id"] == row["root"])
            assert root["offset"] == row["offset"] and root["arena"] == row["arena"] and root["upper"] == row["lower"]
    tables = read_table(path)
    assert set(tables) == {"SIM0", 'a,"b"\n', 'a,"b"\n/1'}
    assert sum(map(len, tables.values())) == len(blocks)


def test_csv_of_special_names(tmp_path):
    picture = hostile_picture()
    names = [n.replace("\ud800", "?") for n in HOSTILE]
    blocks = tuple(
        BareBlock(b.id, b.lower, b.upper, b.nbytes, b.offset, n, b.op, "X")
        for b, n in zip(picture.arenas[0].blocks, names, strict=True)
    )
    write_table([BareArena("X", 128, 128, True, blocks)], tmp_path / "plan.csv")
    read = [b for rows in read_table(tmp_path / "plan.csv").values() for _, b in rows]
    assert [b.name for b in read] == [n or str(i) for i, n in enumerate(names)]  # without a name: the id
    write_table(picture.arenas, tmp_path / "surrogate.csv")
    assert len(read_table(tmp_path / "surrogate.csv")[HOSTILE[0]]) == len(HOSTILE)


def test_page_contains_only_the_plan(rng, tmp_path):
    arena = random_arena(rng, 40)
    picture = Picture(
        "a graph", 80, (arena,), (Split(0, "X", ("n",) * 80, 0, 80, 0),), (Copy("c", "Y", "X", 5, 0, "why"),)
    )
    path = tmp_path / "plan.html"
    text = page(picture, path)
    assert path.read_text("utf-8") == text
    parsed = Elements(text)
    assert parsed.title == "a graph"
    data = json.loads(parsed.scripts[0])["arenas"][0]
    pieces = storages(arena.blocks)
    assert data["lower"] == [p.lower for p in pieces] and data["bottom"] == [p.bottom for p in pieces]
    assert data["name"] == [p.names[-1] for p in pieces]
    titles = re.findall(r"<title>(.*?)</title>", text, re.DOTALL)
    for b in arena.blocks:
        assert any(t.startswith(f"{b.name}\n") and f"bytes: {b.nbytes:,}" in t for t in titles), b
    assert any(t.startswith("copy of c\n") and "from: Y" in t and "reason: why" in t for t in titles)
    for tag, attributes in parsed.found:  # no external resources
        assert tag not in ("img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert attributes.get("href", "data:,") == "data:,"
    assert "url(" not in re.sub(r"url\(#[^)]*\)", "", text)
    assert "default-src 'none'" in text


def of_shape(picture, name="plain"):
    """The same picture with other names."""
    arenas = tuple(
        BareArena(name, a.peak, a.lower_bound, a.proved, tuple(replace(b, name=name, backend=name) for b in a.blocks))
        for a in picture.arenas
    )
    splits = tuple(s._replace(backend=name, nodes=(name,) * len(s.nodes)) for s in picture.splits)
    copies = tuple(c._replace(name=name, src_backend="other", dst_backend=name, reason=name) for c in picture.copies)
    return Picture(name, picture.n_nodes, arenas, splits, copies)


def test_special_names_are_text_in_the_page():
    hostile, plain = hostile_picture(), of_shape(hostile_picture())
    found = [Elements(re.sub("[\x00-\x1f]", " ", page(p))).found for p in (plain, hostile)]
    kinds = [Counter(tag for tag, a in f if tag != "text" and "overflow" not in a) for f in found]
    assert kinds[0] == kinds[1]  # no name became an element; the number of labels depends on the names
    known = {a for _, attributes in found[0] for a in attributes}
    assert {a for _, attributes in found[1] for a in attributes} <= known | {"transform"}  # nor an attribute
    parsed = Elements(page(hostile))
    assert parsed.title.startswith(HOSTILE[0])
    data = json.loads(parsed.scripts[0])
    assert data["arenas"][0]["name"] == HOSTILE
    assert not re.search(r"[<>&]", parsed.scripts[0])
    page(hostile_picture()).encode("utf-8")


def test_notebook(rng):
    ET.fromstring(notebook(Picture("a graph", 80, (random_arena(rng, 40), random_arena(rng, 3, "Y")))))  # well formed
    picture = hostile_picture()
    root = ET.fromstring(notebook(picture))
    tags = {e.tag.rpartition("}")[2] for e in root.iter()}
    assert tags <= {"div", "svg", "g", "rect", "line", "path", "text", "title", "style", "defs", "pattern"}
    assert not any(k.startswith("on") for e in root.iter() for k in e.attrib)
    svg = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{svg}g[@data-i]")) == len(HOSTILE)
    assert any("onerror" in (e.text or "") for e in root.iter(f"{svg}title"))
    many = BareArena("X", 5, 5, True, tuple(BareBlock(i, i, i + 1, 5) for i in range(10000)))
    assert len(notebook(bare_picture("many", [many]))) < 8_000_000


def test_text_map():
    a, b = BareBlock(0, 0, 4, 64, 0, "below", "ADD"), BareBlock(1, 2, 8, 32, 64, "above", "MUL")
    text = text_map(bare_picture("two", [BareArena("X", 96, 96, True, (a, b))]), width=8 * 2 + 13, rows=3)
    rows = [line.split("|")[1] for line in text.splitlines() if line.count("|") == 2]
    assert rows == ["....BBBBBBBBBBBB", "AAAAAAAA........", "AAAAAAAA........"]
    assert "    ^ most alive: step 2" in text
    assert re.search(r"A +64 B  steps 0\.\.3  at 0  below ADD", text)


def test_text_map_of_special_names():
    text = text_map(hostile_picture(), largest=len(HOSTILE))
    assert "\x1b" not in text and "onerror" in text
    assert all(c == "\n" or c.isprintable() for c in text)
    text.encode("utf-8")
    assert "1 split:" in text and "1 copy (64 B)" in text


def test_methods_of_a_plan(rng, tmp_path):
    splits = (Split(0, "X", ("n",) * 70, 0, 70, 0), Split(1, "Y", ("n",) * 10, 70, 80, 1))
    plan = gb.sched.Plan(None, None, (random_arena(rng, 20),), splits, (Copy("c", "X", "Y", 5, 1, "why"),))
    picture = Picture("plan", 80, plan.arenas, plan.splits, plan.copies)
    assert (
        plan.to_csv() == write_table(plan.arenas) == plan.to_csv(tmp_path / "a.csv") == (tmp_path / "a.csv").read_text()
    )
    assert plan.to_html() == page(picture) == plan.to_html(tmp_path / "a.html") == (tmp_path / "a.html").read_text()
    assert plan.to_svg(width=700) == drawing(picture, width=700) == plan.to_svg(tmp_path / "a.svg", 700)
    assert (tmp_path / "a.svg").read_text() == plan.to_svg(width=700) + "\n"
    assert plan.to_text() == text_map(picture) and len(plan.to_text(60, 3, 2).splitlines()[3]) == 60
    assert plan._repr_html_() == notebook(picture)


def test_nothing_to_draw():
    for picture in (bare_picture("", []), bare_picture("empty", [BareArena("X", 0, 0, True, ())]),
                    bare_picture("no bytes", [BareArena("X", 0, 0, True, (BareBlock(0, 3, 3, 0),))])):  # fmt: skip
        json.loads(Elements(page(picture)).scripts[0])
        ET.fromstring(notebook(picture))
        assert text_map(picture)


def test_plan_command_by_arena(rng, tmp_path, capsys):
    source, out, drawn = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "out.html"
    arenas = [random_arena(rng, 30, "SIM0"), random_arena(rng, 20, "CPU")]
    write_table(arenas, source)
    assert main(["plan", str(source), "--out", str(out), "--html", str(drawn), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["arenas"]
    assert [r["arena"] for r in results] == ["SIM0", "CPU"]
    given, written = (list(csv.DictReader(io.StringIO(p.read_text()))) for p in (source, out))
    assert [{**w, "offset": ""} for w in written] == [{**g, "offset": ""} for g in given]
    for result, arena in zip(results, arenas, strict=True):
        rows = [r for r in written if r["arena"] == result["arena"]]
        assert result["peak"] == max(int(r["offset"]) + int(r["size"]) for r in rows) >= arena.lower_bound
        for p in rows:
            if p["root"]:
                assert p["offset"] == next(r for r in rows if r["id"] == p["root"])["offset"]
            for q in rows:  # live blocks do not overlap, unless they share memory
                together = p is not q and int(p["lower"]) < int(q["upper"]) and int(q["lower"]) < int(p["upper"])
                overlap = int(p["offset"]) < int(q["offset"]) + int(q["size"]) and int(q["offset"]) < int(
                    p["offset"]
                ) + int(p["size"])
                assert not (together and overlap) or q["root"] == p["id"] or p["root"] == q["id"]
    assert peaks_of_page(drawn.read_text()) == [r["peak"] for r in results]
    assert main(["plan", str(source), "--map"]) == 0
    text = capsys.readouterr().out
    assert "lower bound:" in text and "SIM0: arena" in text and "most alive: step" in text


def test_plan_command_of_bare_instance(tmp_path, capsys):
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("size,upper,id,lower\n4,2,a,0\n4,3,b,1\n")
    assert main(["plan", str(source), "--out", str(out), "--capacity", "8", "--budget-ms", "0"]) == 0
    assert (
        out.read_text() == "id,lower,upper,size,offset\na,0,2,4,0\nb,1,3,4,4\n"
        or out.read_text() == "id,lower,upper,size,offset\na,0,2,4,4\nb,1,3,4,0\n"
    )
    assert "peak:        8" in capsys.readouterr().out


def test_plan_command_detects_the_kind_of_file(tmp_path, capsys):
    (tmp_path / "instance").write_text("id,lower,upper,size\na,0,2,4\n")
    assert main(["plan", str(tmp_path / "instance")]) == 0
    assert "peak:        4" in capsys.readouterr().out
    write_llama(tmp_path / "model.bin", architecture="gpt2")
    assert main(["plan", str(tmp_path / "model.bin")]) == 1
    assert re.search("model.bin: the architecture 'gpt2' is not known. Known are .*llama", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--align", "0"], "alignment"),
        (["--align", "3"], "power of two"),
        (["--capacity", "0"], "capacity is 0"),
        (["--capacity", "7"], "no plan fits"),
        (["--capacity", "-1"], "capacity"),
        (["--budget-ms", "-1"], "budget_ms"),
        (["--devices", "CPU"], "--devices is for graphs"),
        (["--tokens", "5"], "--tokens is for graphs"),
        (["--out", "no/such/directory.csv"], "No such file"),
        (["--html", "no/such/directory.html"], "No such file"),
    ],
)
def test_plan_command_refuses(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("id,lower,upper,size\na,0,2,4\nb,1,3,4\n")
    assert main(["plan", "in.csv", *arguments]) == (2 if "is for graphs" in message else 1)
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,lower,upper,size,root\na,0,2,4,zz\n", "root zz is not in its arena"),
        ("id,lower,upper,size,arena,root\na,0,2,4,X,\nb,0,2,4,Y,a\n", "root a is not in its arena"),
        ("id,lower,upper,size\na,0,two,4\n", "line 2: upper must be an integer, is 'two'"),
        ("id,lower,upper,size\na,3,2,4\n", "before its start"),
        ("", "no column id, lower, size, upper"),
    ],
)
def test_plan_command_refuses_files(content, message, tmp_path, capsys):
    (tmp_path / "in.csv").write_text(content)
    assert main(["plan", str(tmp_path / "in.csv")]) == 1
    assert message in capsys.readouterr().err


def write_llama(path, layers=2, **changes):
    """A file with a tiny model with zero weights."""
    sizes = {"embedding_length": 64, "block_count": layers, "attention.head_count": 4, "attention.head_count_kv": 2,
             "feed_forward_length": 128, "context_length": 32, "attention.layer_norm_rms_epsilon": 1e-5}  # fmt: skip
    shapes = {"token_embd": (100, 64), "output_norm": (64,)}
    for i in range(layers):
        block = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64),
         "attn_output": (64, 64),
                 "ffn_norm": (64,), "ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}  # fmt: skip
        shapes.update({f"blk.{i}.{name}": shape for name, shape in block.items()})
    with gb.gguf.Writer(path) as writer:
        writer.add("general.architecture", changes.pop("architecture", "llama"))
        for key, value in {**sizes, **changes.pop("keys", {})}.items():
            writer.add(f"llama.{key}", value)
        for name, shape in {**shapes, **changes.pop("shapes", {})}.items():
            if shape is not None:
                quantized = len(shape) == 2 and name != "token_embd"
                writer.add_tensor(
                    f"{name}.weight", np.zeros(shape, np.float32), dtype=gb.dtypes.q8_0 if quantized else gb.float32
                )
    assert not changes


def test_plan_of_a_model(tmp_path, capsys):
    path, drawn, out = tmp_path / "tiny.gguf", tmp_path / "tiny.html", tmp_path / "tiny.csv"
    write_llama(path)
    arguments = ["plan", str(path), "--devices", "SIM,CPU", "--tokens", "8", "--html", str(drawn), "--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["graph"] == "tiny.gguf: 8 tokens that fill a cache of 32"
    (sim,) = {s["backend"] for s in result["splits"]} - {"CPU"}
    assert sim.startswith("SIM")
    assert all(
        a["start"] < a["end"] <= b["start"] for a, b in zip(result["splits"], result["splits"][1:], strict=False)
    )
    # the stream between layers
    assert any(c["from"] == sim and c["to"] == "CPU" and c["size"] >= 8 * 64 * 4 for c in result["copies"])
    names = [t.partition("\n")[0] for t in re.findall(r"<title>(.*?)</title>", drawn.read_text(), re.DOTALL)]
    assert "blk.0.attention" in names and "blk.1.ffn_gate" in names and "blk.0.attn_q.weight" not in names
    assert peaks_of_page(drawn.read_text()) == [a["peak"] for a in result["arenas"]]
    for arena in result["arenas"]:
        assert arena["lower_bound"] <= arena["peak"]
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert {r["name"] for r in rows} <= set(names)
    size = {r["name"]: int(r["size"]) for r in rows}
    assert size["blk.0.attention"] == size["blk.0.attn_output"] == 8 * 64 * 4  # tokens, width, float32
    assert size["output"] == 1 * 100 * 4  # one token, vocabulary
    assert size["blk.0.ffn_up"] == 8 * 128 * 4
    assert size["blk.1.ffn_up"] == 1 * 128 * 4  # after the last attention only the last token is computed
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "splits |" in text and re.search(r"\d+ copies \(.* in all\)", text) and "most alive" in text
    assert main(["plan", str(out)]) == 0  # the written table can be planned again


def test_the_sum_of_a_model_has_its_weights_and_caches(tmp_path, capsys):
    write_llama(tmp_path / "tiny.gguf")
    assert main(["plan", str(tmp_path / "tiny.gguf"), "--tokens", "2"]) == 0
    out = capsys.readouterr().out
    parts = {name: int(n.replace(",", "")) for name, n in re.findall(r"^ +[+=]? ?([a-z ]+?) +([\d,]+)$", out, re.M)}
    assert parts["computing"] == parts["arena"] + parts["leafs"] + parts["kept copies"] + parts["scratch"]
    assert parts["weights"] > 0 and parts["caches"] > 0
    assert parts["total"] == parts["computing"] + parts["weights"] + parts["caches"]
    assert out.startswith(f"it needs {size_text(parts['total'])} on CPU\n")


def _held(arena):
    return arena["weights"], arena["caches"]


def test_plan_of_a_model_on_small_devices(tmp_path, capsys):
    path = tmp_path / "tiny.gguf"
    write_llama(path, layers=4)
    with gb.gguf.open(path) as file:
        sizes = {name: t.nbytes for name, t in file.tensors.items()}
    layer, cache = sum(n for name, n in sizes.items() if name.startswith("blk.0.")), 2 * 32 * 2 * 16 * 2
    rest = sum(n for name, n in sizes.items() if not name.startswith("blk."))

    def plan(*devices):
        assert main(["plan", str(path), "--json", "--devices", *devices]) == 0
        return [_held(a) for a in json.loads(capsys.readouterr().out)["arenas"]]

    assert plan("CPU") == [(4 * layer + rest, 4 * cache)]
    assert plan("SIM:mem=16M", "CPU") == [(2 * layer, 2 * cache), (2 * layer + rest, 2 * cache)]
    room = (layer + cache) * 3 // 2  # memory for one of the two layers
    assert plan(f"SIM:mem={room}", "CPU") == [(layer, cache), (3 * layer + rest, 3 * cache)]
    assert plan("SIM:mem=1K", "CPU") == [(0, 0), (4 * layer + rest, 4 * cache)]
    assert plan("SIM:mem=16M", f"SIM:mem={room}", "CPU") == [
        (2 * layer, 2 * cache), (layer, cache), (layer + rest, cache),
    ]  # fmt: skip
    assert main(["plan", str(path), "--devices", "SIM:mem=1K", "CPU"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["+", "weights", "0", *[f"{4 * layer + rest:,}"] * 2] in words
    assert ["+", "caches", "0", *[f"{4 * cache:,}"] * 2] in words
    assert main(["plan", str(path), "--devices", "SIM:mem=1K"]) == 1
    err = capsys.readouterr().err
    assert "weights and caches do not fit on SIM" in err and "--devices ... CPU" in err and "--context" in err


def test_plan_command_reorders_nodes(tmp_path, capsys):
    def peak(*arguments):
        assert main(["plan", *arguments, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        return result["arenas"][0]["peak"], result["reordered"]

    assert peak("unet")[1] is False
    assert peak("unet", "--reorder")[1] is True
    assert peak("unet", "--reorder")[0] < 0.95 * peak("unet")[0]
    assert peak("llama", "--reorder") == peak("llama")
    assert main(["plan", "unet", "--reorder"]) == 0
    assert "in another order of the nodes" in capsys.readouterr().out
    assert main(["plan", "llama", "--reorder"]) == 0
    assert "the order is unchanged" in capsys.readouterr().out
    (tmp_path / "in.csv").write_text("id,lower,upper,size\n0,0,1,4\n")
    assert main(["plan", str(tmp_path / "in.csv"), "--reorder"]) == 2
    assert "--reorder is for graphs" in capsys.readouterr().err


def test_plan_command_reports_fallbacks(capsys):
    assert main(["plan", "whisper", "--devices", "SIM:name=A,noops=soft_max", "CPU"]) == 0
    err = capsys.readouterr().err
    assert (
        err.startswith("python -m ggml_backend plan: warning: ")
        and "do not run on the device of the highest priority" in err
    )
    assert ".py" not in err and err.count("heavy operation") == 1


def test_plan_command_draws_plans_that_do_not_fit(tmp_path, capsys):
    arguments = ["plan", "whisper", "--devices", "SIM:name=tiny,mem=1M", "--html", str(tmp_path / "whisper.html")]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["arenas"][0]["peak"] == 3072 * 1024
    assert "tiny" in result["does_not_fit"]
    assert len(Elements((tmp_path / "whisper.html").read_text()).scripts) >= 1
    assert main(arguments) == 0
    assert "it does not fit: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"architecture": "gpt2"}, [], "the architecture 'gpt2' is not known. Known are bert, .*llama, .*whisper"),
        ({"architecture": 7}, [], "architecture '7' is not known"),
        (
            {"keys": {"attention.head_count": 0}},
            [],
            r"llama\.attention\.head_count is 0: it must be a whole number from 1 to",
        ),
        (
            {"keys": {"attention.head_count": 5}},
            [],
            r"llama\.attention\.head_count 5 is no multiple of llama\.attention\.head_count_kv 2",
        ),
        (
            {"keys": {"block_count": "two"}},
            [],
            r"llama\.block_count is 'two': it must be a whole number from 1 to 65536",
        ),
        ({"keys": {"block_count": 3}}, [], "no tensor blk.2.attn_norm.weight"),
        ({"keys": {"expert_count": 8}}, [], r"no key llama\.expert_used_count"),
        (
            {"shapes": {"blk.1.ffn_up": (64, 64)}},
            [],
            r"blk.1.ffn_up.weight has shape \(64, 64\); the keys of the file say \(128, 64\)",
        ),
        ({"shapes": {"token_embd": None}}, [], "no matrix token_embd.weight"),
        ({}, ["--tokens", "33"], "33 tokens do not fit a cache of 32"),
        ({}, ["--tokens", "0"], "0 tokens do not fit"),
        ({}, ["--devices", "NOPE"], "NOPE"),
        ({}, ["--devices", "SIM,,CPU"], "an empty name"),
        ({}, ["--align", "32"], "--align is for FILE.csv"),
        ({}, ["--reproducible"], "--reproducible is for FILE.csv"),
    ],
)
def test_plan_command_refuses_models(changes, arguments, message, tmp_path, capsys):
    write_llama(tmp_path / "tiny.gguf", **changes)
    assert main(["plan", str(tmp_path / "tiny.gguf"), *arguments]) == (2 if "is for FILE.csv" in message else 1)
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("source", "message"),
    [("no_such_example", "neither a file nor|no such file"), ("missing.gguf", "missing.gguf"), (".", "a directory")],
)
def test_plan_command_refuses_sources(source, message, capsys):
    assert main(["plan", source]) == 1
    assert re.search(message, capsys.readouterr().err)
