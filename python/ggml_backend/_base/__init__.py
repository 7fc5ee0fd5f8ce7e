"""Shared by all other folders: errors, text, files, C objects and their locks, signals and
clocks."""
