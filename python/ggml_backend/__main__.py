"""``python -m ggml_backend``"""

import sys

from .cli import main

sys.exit(main())
