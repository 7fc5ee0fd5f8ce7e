"""Graphs to plan and to measure: small examples (:mod:`.graphs`), and models in files
(:mod:`.models`)."""

from .graphs import NAMES, build

__all__ = ["NAMES", "build"]
