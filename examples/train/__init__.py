"""Trains a small transformer on characters, and lets it write: ``python -m examples.train --help``."""
