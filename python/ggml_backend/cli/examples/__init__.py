"""Graphs to plan and to measure: of examples (:mod:`.graphs`), and of models in files (:mod:`.models`)."""

from .graphs import NAMES, build

__all__ = ["NAMES", "build"]
