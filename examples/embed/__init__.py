"""Sentence embeddings with all-MiniLM-L6-v2: the pattern for running your own model with ggml_backend.

``model.py`` maps the weights and builds the encoder graph, ``__main__.py`` is the command line:
``python -m examples.embed --help``.
"""
