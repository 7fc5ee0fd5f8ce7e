"""Sentence embeddings with all-MiniLM-L6-v2, as a pattern for your own model.

``model.py`` maps the weights and builds the encoder graph, ``__main__.py`` is the command line:
``python -m examples.embed --help``.
"""
