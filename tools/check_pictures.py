#!/usr/bin/env python3
"""Opens the page of a real plan in a headless Chromium and compares what is drawn with the plan.

    tools/check_pictures.py [FILE.html ...] [--screenshots DIRECTORY]

Without a file: the plan of a model graph from tests/data, one with hostile names, and one of 10,000 blocks. Needs
chromium and chromedriver (Debian: chromium chromium-driver), which it drives by the W3C WebDriver protocol and nothing
else; says so and succeeds when they are missing. Checked: nothing on the console; nothing loaded; a rectangle of
nonzero area for every block, at the place that its numbers say; hovering over blocks shows their names; the keyboard
does too; the lines of peak and bound, and the curve of live bytes; zoom; the moment's list; splits and copies; light
and dark.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--force-color-profile=srgb", "--window-size=1280,1900",
]  # fmt: skip
HOSTILE = [  # names of tensors
    "</script><img src=x onerror=\"document.title='hacked'\">", "<!--<script>", "a\"b'c&amp;<b>", "\u2028line", "]]>",
    "\ud800", "${1}`",
]  # fmt: skip


class Browser:
    """A session of chromedriver."""

    def __init__(self, driver: str, chromium: str, profile: str, dark: bool) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._wait()
        options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        logs = {"browser": "ALL", "performance": "ALL"}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        try:
            session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
            self.url += "/session/" + session["sessionId"]
            if dark:
                scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
                self.call("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": scheme})
        except BaseException:
            self.process.terminate()
            self.process.wait()
            raise

    def _wait(self) -> None:
        for _ in range(100):
            try:
                self.call("GET", "/status")
                return
            except urllib.error.URLError:
                time.sleep(0.1)
        raise SystemExit("chromedriver does not answer")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps({} if body is None else body).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with self.opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.read().decode(errors='replace')[:500]}") from None

    def run(self, script: str, *args: Any) -> Any:
        return self.call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def settle(self) -> None:
        """After scrolling: until the page has heard of it."""
        script = (
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)));"
        )
        self.call("POST", "/execute/async", {"script": script, "args": []})

    def mouse(self, *steps: dict[str, Any]) -> None:
        source = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": steps}
        self.call("POST", "/actions", {"actions": [source]})

    @staticmethod
    def to(x: float, y: float) -> dict[str, Any]:
        return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 5}

    def move(self, x: float, y: float) -> None:
        self.mouse(self.to(x, y))

    def drag(self, x0: float, x1: float, y: float) -> None:
        ways = [self.to(x0 + (x1 - x0) * k / 4, y) for k in range(1, 5)]
        self.mouse(self.to(x0, y), {"type": "pointerDown", "button": 0}, *ways, {"type": "pointerUp", "button": 0})

    def key(self, value: str) -> None:
        strokes = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def log(self, kind: str) -> list[dict[str, Any]]:
        return list(self.call("POST", "/se/log", {"type": kind}))

    def close(self) -> None:
        try:
            self.call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait()


GEOMETRY = """
const map = document.querySelectorAll(".card[data-arena]")[arguments[0]].querySelector("svg.map");
const free = map.querySelector(".freearea").getBoundingClientRect();
const box = r => {
    const b = r.getBoundingClientRect();
    return [b.left - free.left, free.bottom - b.bottom, b.width, b.height];
};
return { free: [free.width, free.height], rects: [...map.querySelectorAll("rect[data-i]")].map(box) };
"""
LINES = """
const card = document.querySelectorAll(".card[data-arena]")[arguments[0]], map = card.querySelector("svg.map");
const free = map.querySelector(".freearea").getBoundingClientRect();
const height = l => (free.bottom - l.getBoundingClientRect().top) / free.height;
const up = name => [...map.querySelectorAll("line.rule." + name)].map(height);
const live = card.querySelector("path.live"), box = live && live.getBBox();
return { top: up("top"), bound: up("bound"), words: [...map.querySelectorAll("text.lead")].map(t => t.textContent),
         live: live ? live.getAttribute("d") : "", high: box ? box.height : 0 };
"""
CENTRE = """
const map = document.querySelectorAll(".card[data-arena]")[arguments[0]].querySelector("svg.map");
map.scrollIntoView({ block: "center" });
const b = map.querySelector(`rect[data-i="${arguments[1]}"]`).getBoundingClientRect();
const x = Math.round(b.left + b.width / 2), y = Math.round(b.top + b.height / 2), hit = document.elementFromPoint(x, y);
return [x, y, hit && hit.dataset ? Number(hit.dataset.i ?? -1) : -1];
"""
TIP = """
const t = document.getElementById("tip");
const title = t.querySelector("b")?.textContent ?? "";
return [getComputedStyle(t).visibility, title.toWellFormed(), t.textContent.toWellFormed()];
"""


class Check:
    """One page in one browser."""

    def __init__(self, browser: Browser, page: Path) -> None:
        self.browser, self.page = browser, page
        text = page.read_text("utf-8")
        begin = text.index(">", text.index('id="plan"')) + 1
        self.plan = json.loads(text[begin : text.index("</script>", begin)])

    def fail(self, message: str) -> None:
        raise SystemExit(f"{self.page.name}: {message}")

    def expect(self, condition: bool, message: str) -> None:
        if not condition:
            self.fail(message)

    def shown(self, name: str) -> str:
        """As the browser gives text back: a lone surrogate has no UTF-8."""
        return name.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def geometry(self, number: int, arena: dict[str, Any]) -> None:
        """Every block's rectangle against its numbers, in shares of the map."""
        seen = self.browser.run(GEOMETRY, number)
        wide, high = seen["free"]
        self.expect(
            len(seen["rects"]) == len(arena["name"]), f"{len(seen['rects'])} rectangles for {len(arena['name'])} blocks"
        )
        self.expect(wide > 200 and high > 100, f"the map has {wide} x {high} pixels")
        height = max(arena["peak"], arena["bases"][-1], 1)
        t0, span = self.plan["t0"], self.plan["t1"] - self.plan["t0"]
        for i, (x, y, w, h) in enumerate(seen["rects"]):
            self.expect(w > 0 and h > 0, f"block {i} has no area: {w} x {h}")
            bottom = arena["bases"][arena["chunk"][i]] + arena["offset"][i]
            lower, upper = arena["lower"][i], arena["upper"][i]
            want = [
                (lower - t0) * wide / span,
                bottom * high / height,
                (upper - lower) * wide / span,
                arena["size"][i] * high / height,
            ]
            slack = 1.0  # of a pixel: the least height is 0.6
            near = all(abs(got - wanted) <= slack for got, wanted in zip((x, y, w, h), want, strict=True))
            self.expect(near, f"block {i} ({arena['name'][i]}) is drawn at {[x, y, w, h]}, should be at {want}")

    def lines(self, number: int, arena: dict[str, Any]) -> None:
        """The lines at the peak and at the lower bound, and the curve of live bytes: its highest point against the
        blocks' own sum."""
        seen = self.browser.run(LINES, number)
        height = max(arena["peak"], arena["bases"][-1], 1)
        want = {"top": [arena["peak"]], "bound": [arena["bound"]] if arena["bound"] < arena["peak"] else []}
        for name, values in want.items():
            near = len(seen[name]) == len(values) and all(
                abs(g - v / height) < 0.02 for g, v in zip(seen[name], values, strict=True)
            )
            self.expect(near, f"lines {name} at {seen[name]} of the map, should be at {[v / height for v in values]}")
        word = "peak = lower bound" if arena["bound"] >= arena["peak"] else "lower bound"
        self.expect(any(word in t for t in seen["words"]), f"no line says {word!r}: {seen['words']}")
        roots = [i if r < 0 else r for i, r in enumerate(arena["root"])]
        shared: dict[int, list[int]] = {}  # what shares memory counts once: at each time the largest
        for i, root in enumerate(roots):
            while roots[root] != root:
                root = roots[root]
            shared.setdefault(root, []).append(i)
        if len(roots) <= 2000:  # else this takes too long
            sizes, lower, upper = arena["size"], arena["lower"], arena["upper"]
            most = max(
                sum(max((sizes[i] for i in group if lower[i] <= t < upper[i]), default=0) for group in shared.values())
                for t in {*lower, *upper}
            )
            drawn = seen["high"] / 78 * height
            self.expect(
                abs(drawn - most) < 0.03 * height,
                f"the curve of live bytes is {drawn:.0f} bytes high, {most} are alive at most",
            )
        self.expect(seen["live"].count("L") >= 4, "there is no curve of live bytes")

    def hover(self, number: int, arena: dict[str, Any]) -> int:
        """Over the centres of the largest blocks that nothing lies upon."""
        order = sorted(
            range(len(arena["name"])), key=lambda i: -arena["size"][i] * (arena["upper"][i] - arena["lower"][i])
        )
        done = 0
        for i in order[:12]:
            x, y, hit = self.browser.run(CENTRE, number, i)
            self.browser.settle()
            if hit != i:
                continue  # another block of the same memory lies upon it
            self.browser.move(x, y)
            visible, title, text = self.browser.run(TIP)
            name = self.shown(arena["name"][i]) or "(no name)"
            self.expect(
                visible == "visible" and title == name,
                f"hover over block {i}: shows {title!r} ({visible}), not {name!r}",
            )
            self.expect(
                f"{arena['size'][i]:,} bytes" in text and f"{arena['offset'][i]:,}" in text,
                f"hover over block {i} says {text!r}",
            )
            done += 1
        self.expect(done > 0 or not order, "no block could be hovered over")
        return done

    def keyboard(self, number: int, arena: dict[str, Any]) -> None:
        self.browser.run(
            'document.querySelectorAll(".card[data-arena]")[arguments[0]].querySelector("svg.map").focus()', number
        )
        self.browser.settle()
        first = min(
            range(len(arena["name"])),
            key=lambda i: (arena["lower"][i], arena["bases"][arena["chunk"][i]] + arena["offset"][i]),
        )
        self.browser.key("\ue011")  # Home
        visible, title, _ = self.browser.run(TIP)
        name = self.shown(arena["name"][first]) or "(no name)"
        self.expect(visible == "visible" and title == name, f"Home shows {title!r}, not {name!r}")
        self.browser.key("\ue014")  # right
        self.expect(
            bool(self.browser.run('return document.getElementById("said").textContent')),
            "nothing is said to screen readers",
        )

    def moment(self, number: int, arena: dict[str, Any]) -> None:
        """The list of what is alive at the peak moment."""
        script = (
            'return document.querySelectorAll(".card[data-arena]")[arguments[0]].querySelectorAll("tbody tr").length'
        )
        alive = sum(b <= arena["moment"] < e for b, e in zip(arena["lower"], arena["upper"], strict=True))
        rows = self.browser.run(script, number)
        self.expect(rows == min(alive, 501), f"{rows} rows for {alive} blocks alive at the peak moment")

    def zoom(self, arena: dict[str, Any]) -> None:
        """Dragging over a quarter of the map makes blocks wider; Whole graph makes them what they were."""
        if self.plan["t1"] - self.plan["t0"] < 32:
            return
        before = self.browser.run(GEOMETRY, 0)
        box = (
            'const r = document.querySelector("svg.map .freearea").getBoundingClientRect(); return [r.left, r.top,'
            " r.width, r.height]"
        )
        self.browser.run('document.querySelector("svg.map").scrollIntoView({ block: "center" })')
        self.browser.settle()
        x, y, w, h = self.browser.run(box)
        self.browser.drag(x + w / 4, x + w / 2, y + h / 2)
        factor = self.browser.run(GEOMETRY, 0)["rects"][0][2] / before["rects"][0][2]
        self.expect(3 < factor < 5, f"dragging over a quarter of the map made blocks {factor:.2f} times as wide")
        self.browser.run('document.getElementById("all").click()')
        after = self.browser.run(GEOMETRY, 0)["rects"]
        same = all(
            abs(a - b) < 0.5 for p, q in zip(after, before["rects"], strict=True) for a, b in zip(p, q, strict=True)
        )
        self.expect(same, "Whole graph does not undo the zoom")

    def quiet(self) -> None:
        messages = [m["message"] for m in self.browser.log("browser")]
        self.expect(not messages, "the console says:\n" + "\n".join(messages))
        loaded = []
        for entry in self.browser.log("performance"):
            event = json.loads(entry["message"])["message"]
            about = event["params"]
            if event["method"] == "Network.requestWillBeSent" and about["documentURL"].startswith(self.page.as_uri()):
                loaded.append(about["request"]["url"])  # others are of the browser itself
        foreign = [url for url in loaded if not url.startswith((self.page.as_uri(), "data:"))]
        self.expect(self.page.as_uri() in loaded, "the browser's log does not tell what it loads")
        self.expect(not foreign, f"the page loads {foreign}")

    def run(self, screenshots: Path | None, dark: bool) -> str:
        self.browser.call("POST", "/url", {"url": self.page.as_uri()})
        self.expect(
            self.browser.run("return document.documentElement.dataset.ready") == "yes",
            "the script did not come to its end",
        )
        self.expect(
            self.browser.call("GET", "/title") == self.shown(self.plan["title"]).replace("�", "?"),
            "another title than the plan's",
        )
        hovered = 0
        for k, arena in enumerate(self.plan["arenas"]):
            if arena["name"]:
                self.geometry(k, arena)
                self.lines(k, arena)
                self.moment(k, arena)
                hovered += self.hover(k, arena)
                self.keyboard(k, arena)
        if self.plan["arenas"] and self.plan["arenas"][0]["name"]:
            self.zoom(self.plan["arenas"][0])
        strip = self.browser.run('return document.querySelectorAll("svg.strip rect[data-s]").length')
        self.expect(strip == len(self.plan["splits"]), f"{strip} of {len(self.plan['splits'])} splits are drawn")
        text = self.browser.run("return document.body.innerText.toWellFormed()")
        for name in {self.shown(c[0]) for c in self.plan["copies"][:100]} - {""}:
            self.expect(" ".join(name.split()) in " ".join(text.split()), f"the copy of {name!r} is not listed")
        ground = self.browser.run("return getComputedStyle(document.body).backgroundColor")
        light = sum(int(v) for v in ground[ground.index("(") + 1 : -1].split(",")[:3]) > 384
        self.expect(light != dark, f"background {ground} in {'dark' if dark else 'light'} mode")
        self.browser.run(
            'document.activeElement.blur(); scrollTo(0, 0); document.getElementById("tip").style.visibility = "hidden"'
        )
        if screenshots is not None:
            self.browser.screenshot(screenshots / f"{self.page.stem}-{'dark' if dark else 'light'}.png")
        self.quiet()
        return f"{sum(len(a['name']) for a in self.plan['arenas'])} blocks, {hovered} hovered over"


def pages(directory: Path) -> list[Path]:
    """Pages made by the installed package."""
    from ggml_backend import Scheduler, plan_memory
    from ggml_backend._pictures import BareArena, BareBlock, bare_picture, page
    from ggml_backend.cli import main

    found = [directory / f"{name}.html" for name in ("whisper", "llama", "hostile", "many")]
    source = ROOT / "tests" / "data" / "model-graphs" / "whisper_base_enc.csv"
    wanted = [([str(source)], found[0])]
    if hasattr(Scheduler, "prepare"):
        wanted.append((["llama", "--devices", "SIM,CPU"], found[1]))
    for arguments, html in wanted:
        if main(["plan", *arguments, "--html", str(html)]) != 0:
            raise SystemExit(f"no page of the plan of {arguments[0]}")
    names = HOSTILE * 6
    blocks = tuple(BareBlock(i, i, i + 2, 100, 100 * (i % 2), n, HOSTILE[i % 3], "X") for i, n in enumerate(names))
    page(bare_picture(HOSTILE[0], [BareArena(HOSTILE[2], 200, 200, True, blocks)]), found[2])
    rng = random.Random(1)
    lives = [(i, i + rng.randrange(1, 400), rng.randrange(1, 10**6)) for i in range(10000)]
    plan = plan_memory(*zip(*lives, strict=True), budget_ms=0)
    many = tuple(BareBlock(i, *live, int(plan.offsets[i]), f"t{i}", "ADD", "X") for i, live in enumerate(lives))
    page(
        bare_picture("ten thousand blocks", [BareArena("X", plan.peak, plan.lower_bound, plan.proved, many)]), found[3]
    )
    return [f for f in found if f.exists()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the pages of plans in a headless Chromium.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.html")
    parser.add_argument("--screenshots", type=Path, metavar="DIRECTORY", help="keep pictures of the pages there")
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        missing = " and ".join(name for name, path in (("chromium", chromium), ("chromedriver", driver)) if not path)
        print(f"skipped: {missing} not installed (Debian: chromium chromium-driver)")
        return 0
    if options.screenshots:
        options.screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        files = [f.resolve() for f in options.files] or pages(Path(directory))
        for dark in (False, True):
            browser = Browser(driver, chromium, f"{directory}/profile{dark}", dark)
            try:
                for f in files:
                    start = time.perf_counter()
                    result = Check(browser, f).run(options.screenshots, dark)
                    print(f"{f.name}, {'dark' if dark else 'light'}: {result}, {time.perf_counter() - start:.1f} s")
            finally:
                browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
