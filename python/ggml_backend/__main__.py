"""``python -m ggml_backend``"""

import os
import sys

from .cli import main

try:
    status: int = main()
    sys.stdout.flush()
except BrokenPipeError:  # `... | head`: the reader has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    status = 1
sys.exit(status)
