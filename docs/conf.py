"""Configures Sphinx, which makes a site of these pages. ``make docs`` builds the site into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import ggml_backend

project = "ggml_backend"
copyright = "the authors of ggml_backend, MIT licence"
release = version = ggml_backend.__version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton",
    "commands", "docstrings", "files", "headers", "links", "operations", "results",
]  # fmt: skip
exclude_patterns = ["_build", "_ext", "_static"]
templates_path: list[str] = []

# Names that refer to nothing are warnings, and with make docs warnings are errors.
nitpicky = True
nitpick_ignore_regex = [
    # Names of typing and of other packages, whose pages are not fetched.
    ("py:.*", r"(np|numpy|logging|_typing|typing|collections|contextlib|types|os|pathlib|ml_dtypes|torch)\..*"),
    ("py:class", r"(Any|Callable|Iterable|Iterator|Sequence|Mapping|Literal|Self|Path|Final|ArrayLike|_.*|.*\._.*)"),
    # Names of unions and protocols inside the package, and of cores.
    (
        "py:class",
        r"(.*\.)?(\w+Core|Array|TensorLike|By|DTypes|IntPair|IntTriple|Link|Segment|OnInvalid|Fetch|Run|Part"
        r"|LocalNetwork|type\[Any\])",
    ),
]
# An attribute may have the name of a type (Traffic.bytes).
suppress_warnings = ["ref.python"]

myst_heading_anchors = 4
# Links to files of the repository (files.py) are addresses, not references.
myst_url_schemes = ["http", "https", "mailto", "repository"]
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "groupwise"
autodoc_mock_imports = ["torch"]  # the site is built without PyTorch
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
maximum_signature_line_length = 100

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"ggml_backend {release}"
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
