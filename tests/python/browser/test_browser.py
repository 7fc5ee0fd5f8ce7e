"""The page of a plan in a headless Chromium: its layout, and how it reacts to pointer, touch and keyboard."""

from __future__ import annotations

import itertools
import re

import pytest

from browsers import browser, missing
from ggml_backend.profile._pictures import page
from small_plans import HOSTILE, hostile_plan, small_plan

WIDTHS = (360, 800, 1600)

if missing():
    pytest.skip(f"no browser: {missing()}", allow_module_level=True)

from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.actions import interaction  # noqa: E402
from selenium.webdriver.common.actions.action_builder import ActionBuilder  # noqa: E402
from selenium.webdriver.common.actions.pointer_input import PointerInput  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

TIP = """
const t = document.getElementById("tip");
return getComputedStyle(t).visibility === "visible" ? t.innerText.toWellFormed() : "";
"""


@pytest.fixture(scope="module")
def chromium():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pages of the small plan and of the plan with hostile names."""
    folder = tmp_path_factory.mktemp("pages")
    page(small_plan(), folder / "small.html")
    page(hostile_plan(), folder / "hostile.html")
    return folder


# --------------------------------------------------------------------------------------------------------- the layout


@pytest.mark.parametrize("name", ["small", "hostile"])
def test_the_page_fits_and_makes_no_requests(chromium, files, name):
    for width, dark in itertools.product(WIDTHS, (False, True)):
        chromium.open(files / f"{name}.html", width, dark)
        assert chromium.run("return document.documentElement.dataset.ready") == "yes"
        assert chromium.run("return document.documentElement.scrollWidth") <= width
        ground = chromium.run("return getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 384) != dark
        assert chromium.loaded(files / f"{name}.html") == [] and chromium.messages() == []


LABELS = """
return [...document.querySelectorAll("svg.map")].map(map => {
    const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
    const shown = [...map.querySelectorAll(".labels text")].filter(t => t.getBoundingClientRect().width > 0);
    return [shown.map(t => [t.textContent, ...box(t)]), [...map.querySelectorAll(".blocks rect:not(.edge)")].map(box)];
});
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_are_within_their_blocks_and_apart(chromium, files, width):
    """Uses the browser's measurements, in its font."""
    chromium.open(files / "small.html", width)
    seen = 0
    for labels, blocks in chromium.run(LABELS):
        for words, *a in labels:
            assert any(
                b[0] <= a[0] + 1 and a[2] <= b[2] + 1 and b[1] <= a[1] + 2 and a[3] <= b[3] + 2 for b in blocks
            ), words
        for (_, *a), (_, *b) in itertools.combinations(labels, 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        seen += len(labels)
    assert seen >= (2 if width == 360 else 5)


def test_the_page_is_complete_without_scripts(chromium, files):
    """Without scripts the page has charts and tables with titles, but no parts that need the
    script."""
    text = (files / "small.html").read_text()
    bare = files / "no-script.html"
    bare.write_text(text.replace("script-src 'unsafe-inline'; ", ""))  # forbids the script
    chromium.open(bare, 800)
    assert chromium.run("return document.documentElement.dataset.ready") is None
    shown = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getBoundingClientRect().height).length"
    assert chromium.run(shown, ".script") == 0
    assert chromium.run(shown, "svg.map") == 2 and chromium.run(shown, "table") >= 4
    assert chromium.run('return document.querySelectorAll("svg.map title").length') > 8
    alive = chromium.run('return document.querySelectorAll("[data-arena] tbody tr:not([hidden])").length')
    assert alive > 0


# ------------------------------------------------------------------------------------------------- pointer and keyboard


def centre(chromium, selector, number=0):
    script = """
    const e = document.querySelectorAll(arguments[0])[arguments[1]];
    e.scrollIntoView({ block: "center" });
    const r = e.getBoundingClientRect();
    return [r.left + r.width / 2, r.top + r.height / 2];
    """
    x, y = chromium.run(script, selector, number)
    chromium.settle()
    return chromium.run(script, selector, number) or (x, y)


def move(chromium, x, y, kind=interaction.POINTER_MOUSE, press=False):
    builder = ActionBuilder(chromium.driver, mouse=PointerInput(kind, kind))
    builder.pointer_action.move_to_location(round(x), round(y))
    if press:
        builder.pointer_action.pointer_down().pointer_up()
    builder.perform()
    chromium.settle()


def test_the_pointer_opens_tips(chromium, files):
    chromium.open(files / "small.html", 1000)
    move(chromium, *centre(chromium, "svg.map .blocks rect.k0"))
    shown = chromium.run(TIP)
    for word in ("scores", "operator", "MUL_MAT", "shape", "(16, 64) float32", "bytes", "4,096", "from", "q", "to",
                 "probs", "reason", "SIM0: a weight lies there", "in place"):  # fmt: skip
        assert word in shown, (word, shown)
    move(chromium, *centre(chromium, "svg.lanes [data-arrow] .wide"))
    shown = chromium.run(TIP)
    for word in ("copy of", "bytes", "from\tSIM0", "to\tCPU", "reason", "made in each run"):
        assert word in shown.replace("\n", "\t"), (word, shown)
    move(chromium, *centre(chromium, "svg.lanes [data-bar]"))
    assert "split 0 on SIM0" in chromium.run(TIP) and "nodes" in chromium.run(TIP)
    move(chromium, 5, 5)
    assert chromium.run(TIP) == ""


def test_the_tip_of_a_gap_names_its_neighbours(chromium, files):
    chromium.open(files / "small.html", 1000)
    x, y = centre(chromium, "svg.map [data-ground]")
    left, top, wide, high = chromium.run(
        'const r = document.querySelector("svg.map [data-ground]").getBoundingClientRect();'
        "return [r.left, r.top, r.width, r.height]"
    )
    steps, bytes_ = small_plan().n_steps, small_plan().arenas[0].peak
    move(chromium, left + wide * 5.5 / steps, top + high * (1 - 3072 / bytes_))  # below the residual, after the scores
    shown = chromium.run(TIP)
    assert shown.startswith("gap"), shown
    assert "used before" in shown and "probs" in shown and "used again" in shown and "above" in shown, shown
    move(chromium, left + wide * 0.5 / steps, top + 3)
    assert chromium.run(TIP).startswith("free memory")


def test_a_touch_opens_the_tip(chromium, files):
    chromium.open(files / "small.html", 360, touch=True)
    move(chromium, *centre(chromium, "svg.map .blocks rect.k0"), interaction.POINTER_TOUCH, press=True)
    shown = chromium.run(TIP)
    assert "operator" in shown and "MUL_MAT" in shown, shown
    inside = chromium.run('const r = document.getElementById("tip").getBoundingClientRect(); return [r.left, r.right]')
    assert inside[0] >= 0 and inside[1] <= 360


def test_the_keyboard_visits_blocks(chromium, files):
    chromium.open(files / "small.html", 1000)
    chromium.run('document.querySelector("svg.map").focus()')
    chromium.settle()
    seen = []
    for key in (Keys.HOME, *[Keys.ARROW_RIGHT] * 3, Keys.ARROW_UP, Keys.END):
        ActionChains(chromium.driver).send_keys(key).perform()
        chromium.settle()
        shown = chromium.run(TIP)
        assert "operator" in shown and "bytes" in shown, (key, shown)
        seen.append(shown.split("\n")[0])
        assert seen[-1] in chromium.run('return document.getElementById("said").textContent')
    assert len(set(seen)) >= 5, seen
    ActionChains(chromium.driver).send_keys(Keys.ESCAPE).perform()
    assert chromium.run(TIP) == ""
    ActionChains(chromium.driver).send_keys(Keys.ENTER).perform()
    assert "step" in chromium.run('return document.querySelector(".slide output").textContent')


def letters(chromium):
    """The rectangles of all visible labels."""
    return sum(len(words) for labels, _ in chromium.run(LABELS) for words, *_ in labels)


def test_zoom_widens_plots_and_adds_labels(chromium, files):
    chromium.open(files / "small.html", 400)
    widths = 'return [...document.querySelectorAll(".plot")].map(p => p.clientWidth)'
    before, said = chromium.run(widths), letters(chromium)
    chromium.run('document.getElementById("in").click()')
    chromium.settle()
    after = chromium.run(widths)
    assert all(abs(b - 2 * a) <= 2 for a, b in zip(before, after, strict=True))
    assert letters(chromium) > said
    chromium.run('document.querySelector(".scroll").scrollLeft = 120')
    chromium.settle()
    assert set(chromium.run('return [...document.querySelectorAll(".chart .scroll")].map(s => s.scrollLeft)')) == {120}
    chromium.run('document.getElementById("all").click()')
    chromium.settle()
    assert chromium.run(widths) == before


def test_the_table_of_each_step_adds_up(chromium, files):
    chromium.open(files / "small.html", 1000)
    script = """
    const card = document.querySelector('[data-arena="0"]'), slider = card.querySelector(".slide input");
    slider.value = arguments[0];
    slider.dispatchEvent(new Event("input"));
    const rows = [...card.querySelectorAll("tbody tr:not([hidden])")].map(r => r.cells[3].firstChild.textContent);
    const total = k => card.querySelector(`[data-total="${k}"]`).cells[3].firstChild.textContent;
    return [rows, total("live"), total("gaps"), total("top"), card.querySelector(".slide output").textContent];
    """
    number = lambda text: int(text.replace(",", ""))  # noqa: E731
    arena = small_plan().arenas[0]
    for step in range(small_plan().n_steps):
        rows, live, gaps, top, said = chromium.run(script, step)
        alive = {b.root if b.root is not None else b.id: b for b in arena.blocks if b.lower <= step < b.upper}
        assert sum(map(number, rows)) == number(live) == sum(b.nbytes for b in alive.values())
        assert number(live) + number(gaps) == number(top)
        assert number(top) == max((b.offset + b.nbytes for b in alive.values()), default=0)
        assert said.startswith(f"step {step}: ")


def test_the_legend_follows_the_chosen_colours(chromium, files):
    chromium.open(files / "small.html", 1000)
    script = """
    const choice = document.getElementById("colour");
    choice.value = arguments[0];
    choice.dispatchEvent(new Event("change"));
    const fills = new Set([...document.querySelectorAll(".blocks rect:not(.edge)")].map(r => getComputedStyle(r).fill));
    const shown = [...document.querySelectorAll("[data-only]")].filter(e => e.getBoundingClientRect().height);
    return [[...fills].sort(), [...new Set(shown.map(e => e.dataset.only))],
            shown.map(e => getComputedStyle(e.querySelector("rect")).fill)];
    """
    seen = []
    for way in ("kind", "life", "size"):
        fills, ways, legend = chromium.run(script, way)
        assert ways == [way] and set(fills) <= set(legend)
        seen.append(tuple(fills))
    assert len(set(seen)) == 3


def test_special_names_are_text(chromium, files):
    chromium.open(files / "hostile.html", 800)
    assert "hacked" not in chromium.driver.title or "<img" in chromium.driver.title
    assert chromium.run('return document.querySelectorAll("img, b:not(#tip b), script").length') == 2  # its own scripts
    text = chromium.run("return document.body.innerText.toWellFormed()")
    assert "<img src=x" in text
    move(chromium, *centre(chromium, "svg.map .blocks rect"))
    assert HOSTILE[0] in chromium.run(TIP)
    assert chromium.messages() == []
