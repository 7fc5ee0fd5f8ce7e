"""The reference of the site has every public name and header, and the extensions of the site read
their input.

``make docs`` builds the site. Warnings are errors.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

import ggml_backend as gb
from public import MODULES, PATHS
from source_tree import in_tree

DOCS = in_tree("docs/conf.py").parent
REFERENCE = {p.name: p.read_text(encoding="utf-8") for p in sorted((DOCS / "reference").glob("*.md"))}


def extension(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / "_ext" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_name_once():
    named: list[str] = []
    for text in REFERENCE.values():
        text = extension("operations").expand(text)
        text = re.sub(r"^\.\. currentmodule:: ggml_backend\.cluster\n.*?^```", "", text, flags=re.M | re.S)
        named += re.findall(r"^\.\. auto(?:class|function|exception|data):: (?:[\w.]+\.)?(\w+)$", text, re.M)
        named += re.findall(r"^\| `gb\.dtypes\.(\w+)` ", text, re.M)
    whole = set(re.findall(r"automodule:: ggml_backend\.(\w+)$", "".join(REFERENCE.values()), re.M))
    assert whole == {"gguf", "models", "program", "testing", "torch"}
    second = {name for name in gb.ops.__all__ if getattr(gb.ops, name).__name__ != name}
    public = {
        name for name, path in PATHS.items()
        if path.split(".")[1] not in {*whole, "cluster"} and f"gb.{name}" not in MODULES
    }  # fmt: skip
    assert sorted(named) == sorted((public | {"Cluster", "start"}) - {"__version__"} - second)


LIMIT = 150  # lines of a page


def test_pages_are_short():
    """A page of user documents has at most 150 lines. A longer one is two pages, or a list that a script writes."""
    pages = [in_tree("README.md"), *DOCS.glob("**/*.md")]
    long = {str(p.relative_to(DOCS.parent)): n for p in pages if (n := len(p.read_text("utf-8").splitlines())) > LIMIT}
    assert long == {}


def test_the_table_of_data_types_is_true():
    rows = re.findall(r"^\| `gb\.dtypes\.(\w+)` \| `(\w+)` \| (\d+) \| (\d+) \|$", REFERENCE["dtypes.md"], re.M)
    there = [d for d in gb.dtypes.__all__ if isinstance(getattr(gb.dtypes, d), gb.dtypes.DType)]
    assert [name for name, *_ in rows] == there
    for name, ggml_name, elements, nbytes in rows:
        dtype = getattr(gb.dtypes, name)
        assert (dtype.ggml_name, dtype.block_size, dtype.row_nbytes(dtype.block_size)) == (
            ggml_name, int(elements), int(nbytes)
        ), name  # fmt: skip


def test_the_reference_has_every_header():
    pages = {re.findall(r"^```\{c-header\} (\S+)$", p.read_text(encoding="utf-8"), re.M)[0]
             for p in (DOCS / "reference" / "c").glob("*.md") if p.name != "index.md"}  # fmt: skip
    assert pages == {p.name for p in in_tree("c/include/ggml.h").parent.glob("*.h")}


@pytest.mark.parametrize("folder", ["howto", "design", "decisions"])
def test_an_index_lists_its_pages(folder):
    """Readers of the repository see no table of contents: the page itself has a link to each page, by its title."""
    text = (DOCS / folder / "index.md").read_text(encoding="utf-8")
    links = re.findall(r"^- .*\[(.+)\]\(([\w-]+\.md)\)", text, re.M)
    pages = [p for p in (DOCS / folder).glob("*.md") if p.name != "index.md"]
    titles = [re.sub(r" \([\d-]+\)$", "", p.read_text(encoding="utf-8").splitlines()[0][2:]) for p in pages]
    assert sorted(links) == sorted(zip(titles, (p.name for p in pages), strict=True))


def test_every_page_is_reached():
    """Every page is in a list. Sphinx warns of others, but this test needs no build."""
    listed = {"index.md"}
    for page in DOCS.glob("**/*.md"):
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            found = [
                p
                for entry in entries
                for p in (page.parent.glob(f"{entry}.md") if "*" in entry else [page.parent / f"{entry}.md"])
                if p != page
            ]
            listed |= {str(p.resolve().relative_to(DOCS.resolve())) for p in found}
    assert listed == {str(p.relative_to(DOCS)) for p in DOCS.glob("**/*.md")}


@pytest.mark.parametrize(
    ("docstring", "page"),
    [
        (["Does it.", "", "a: one", "b, c: two,", "    and more", "", "Text: as it is, and",
          "goes on"],
         ["Does it.", "", "", "``a``", "    one", "", "``b``, ``c``", "    two,", "    and more", "",
          "Text: as it is, and", "goes on", ""]),
        (["A text", "", "    code: 1"], ["A text", "", "    code: 1", ""]),
        (["See docs/PLANS.md, not my/docs/PLANS.md."], ["See :doc:`/PLANS`, not my/docs/PLANS.md.", ""]),
    ],
)  # fmt: skip
def test_lists_of_parameters_become_definitions(docstring, page):
    assert extension("docstrings").rewrite(docstring) == page


def test_headers_are_read():
    headers = extension("header_text")
    text = """// a.h - what it is.
#ifndef A_H
#define A_H

extern "C" {

// ------------------------------------------------------------------------------------------------------------ sums

// Adds.
GGML_API int gg_add(int a,
    int b);

struct gg_pair {
    int a; // one

    int b;
};

}
#endif
"""
    found = list(headers.blocks_of(text))
    assert [headers.title_of(block) for block in found] == [None, "sums", None, None]
    blocks = [headers.split_comment(block) for block in found if headers.title_of(block) is None]
    assert [comment for comment, _ in blocks] == [["a.h - what it is."], ["Adds."], []]
    assert [headers.names_in("\n".join(code)) for _, code in blocks] == [[], ["gg_add"], ["gg_pair"]]


# ---------------------------------------------------------------------------------------------------------------- links

MARKDOWN = [*sorted(DOCS.rglob("*.md")), *(DOCS.parent / name for name in ("CHANGELOG.md", "CONTRIBUTING.md"))]
links = extension("links")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.M | re.S)


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda p: str(p.relative_to(DOCS.parent)))
def test_pictures_and_links_survive_on_the_site(page: Path) -> None:
    written = without_code(page.read_text(encoding="utf-8"))
    shown = without_code(links.rewrite(page.read_text(encoding="utf-8"), page.parent, DOCS))
    pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", shown)
    assert len(pictures) == written.count("![")
    for picture in pictures:
        assert (DOCS / picture.removeprefix("/")).is_file(), picture
    targets = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert len(targets) == len(re.findall(r"\]\(([^)\s]+)\)", written))
    with_pages = links.linked_files(DOCS)
    for target in targets:
        if target.startswith(("https:", "http:", "#")):
            continue
        if target.startswith(f"{links.SCHEME}:"):
            assert DOCS.parent / target.partition(":")[2] in with_pages, target
        else:
            assert (DOCS / target.removeprefix("/").partition("#")[0]).is_file(), target


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("![a picture](pictures/encoder.svg)", "![a picture](/pictures/encoder.svg)"),
        (
            "[![a picture](docs/pictures/encoder.svg)](docs/PLANS.md)",
            "[![a picture](/pictures/encoder.svg)](/PLANS.md)",
        ),
        ("see [PLANS.md](PLANS.md#pictures)", "see [](/PLANS.md#pictures)"),
        ("see [the plans](PLANS.md)", "see [the plans](/PLANS.md)"),
        ("[`mini.c`](../examples/backend/mini.c)", "[`mini.c`](repository:examples/backend/mini.c)"),
        ("[a header](../c/include/ggml.h)", "[a header](/reference/c/ggml.md)"),
        ("`[x](PLANS.md)` is code", "`[x](PLANS.md)` is code"),
        ("[out](https://example.org/a.md)", "[out](https://example.org/a.md)"),
    ],
)
def test_links_are_rewritten(written: str, shown: str) -> None:
    assert links.rewrite(written, DOCS.parent if "docs/" in written else DOCS, DOCS) == shown


def test_every_example_has_a_page() -> None:
    code = {p for p in (DOCS.parent / "examples").rglob("*") if p.suffix in {".py", ".c", ".h", ".toml"}}
    shared = {DOCS.parent / "examples" / "command.py"}
    assert code - shared <= set(links.linked_files(DOCS))


# ------------------------------------------------------------------------------------------------------------- commands


def commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parsers of commands without subcommands."""
    from ggml_backend.cli.program import complete

    every = list(complete(parser))
    return [p for p in every if not any(isinstance(a, argparse._SubParsersAction) for a in p._actions)]


def test_every_command_accepts_its_example() -> None:
    from ggml_backend import cli

    for command in commands(cli.parser()):
        assert command.epilog is not None, command.prog
        example = command.epilog.removeprefix("example: ").removeprefix("mpiexec -n 3 ")
        assert example.startswith(command.prog), command.prog
        command.parse_args(shlex.split(example.removeprefix(command.prog)))
