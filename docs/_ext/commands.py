"""The command line's parser with every command, for the page of the command line."""

from __future__ import annotations

import argparse

from ggml_backend import cli
from ggml_backend.cli.program import complete


def parser() -> argparse.ArgumentParser:
    whole = cli.parser()
    list(complete(whole))
    return whole
