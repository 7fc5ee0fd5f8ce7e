"""Folders of Hugging Face's ``transformers`` as GGUF files: names of tensors, keys, and the tokenizer.

``names`` has the table of model types. ``keys`` translates ``config.json``, and ``vocabulary`` translates
``tokenizer.json``.
"""
