"""The directive ``commands``: a section for each command, with an example and its arguments as a list."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from ggml_backend import cli
from ggml_backend.cli.program import complete


def parser() -> argparse.ArgumentParser:
    """The parser with the arguments of every command."""
    whole = cli.parser()
    list(complete(whole))
    return whole


def actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands directly below a parser, without aliases."""
    found: dict[argparse.ArgumentParser, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                found.setdefault(one, name)
    return {name: one for one, name in found.items()}


def example_of(parser: argparse.ArgumentParser) -> str:
    return (parser.epilog or "").removeprefix("example: ")


def term_of(action: argparse.Action) -> str:
    """The form of an argument in a call: ``--json FILE``, ``NAME``."""
    metavar = action.metavar if action.metavar is not None else action.dest.upper()
    if action.choices and action.metavar is None:
        metavar = "|".join(map(str, action.choices))
    value = "" if action.nargs == 0 else f" {metavar}"
    more = " ..." if action.nargs in ("*", "+") and "..." not in value else ""
    return (", ".join(action.option_strings) + value + more).strip()


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        whole = parser()
        return [self._section(name, one) for name, one in actions_of(whole).items()]

    def _section(self, name: str, parser: argparse.ArgumentParser) -> nodes.section:
        words = parser.prog.removeprefix("python -m ggml_backend ")
        made = nodes.section("", nodes.title("", words), ids=[nodes.make_id(f"command-{words}")])
        self.state.document.note_explicit_target(made)
        made += self._text(parser.description)
        below = actions_of(parser)
        if below:
            made += [self._section(name, one) for name, one in below.items()]
            return made
        made += nodes.literal_block("", example_of(parser), language="shell")
        made += self._groups(parser)
        return made

    def _groups(self, parser: argparse.ArgumentParser) -> Iterator[nodes.Node]:
        for group in parser._action_groups:
            shown = [a for a in group._group_actions if a.dest != "help" and a.help != argparse.SUPPRESS]
            if not shown:
                continue
            if group.title not in ("positional arguments", "options", "optional arguments"):
                yield nodes.rubric("", (group.title or "").capitalize().replace("file.csv", "FILE.csv"))
            items = nodes.definition_list()
            for action in shown:
                text = parser._get_formatter()._expand_help(action) if action.help else ""
                term = nodes.term("", "", nodes.literal("", term_of(action)))
                items += nodes.definition_list_item("", term, nodes.definition("", *self._text(text)))
            yield items

    def _text(self, text: str | None) -> list[nodes.Node]:
        shown = re.sub(r"\s+", " ", text or "").strip()
        return [nodes.paragraph("", shown[:1].upper() + shown[1:])] if shown else []


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
