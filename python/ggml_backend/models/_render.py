"""Renders a chat template. :mod:`ggml_backend.models.chat` runs this file as a process of its own.

A template comes from an untrusted file. Jinja2's sandbox keeps it from the objects of Python, and the limits of this
process keep it from endless loops and endless texts. stdin: the job in JSON. stdout: the text or the error in JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any


class Refused(Exception):
    """The template called ``raise_exception``."""


def limit(n_seconds: int, n_bytes: int) -> None:
    """Limits the processor time and the memory of this process, where the system can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (n_seconds, n_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def render(template: str, variables: dict[str, Any]) -> str:
    """The text of a template in the environment that templates of ``transformers`` expect."""
    from datetime import datetime

    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise Refused(message)

    def as_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    extensions = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template).render(**variables)


def main() -> None:
    """Does one job."""
    job = json.load(sys.stdin)
    sys.path[:] = job["path"]
    answer: dict[str, str]
    try:
        import jinja2.ext
        import jinja2.sandbox  # noqa: F401

        limit(job["seconds"], job["bytes"])
        text = render(job["template"], job["variables"])
        n, most = len(text), job["characters"]
        too_long = f"its text has {n:,} characters, at most {most:,} are allowed"
        answer = {"text": text} if n <= most else {"error": too_long}
    except ModuleNotFoundError as error:
        answer = {"missing": str(error.name)}
    except MemoryError:
        answer = {"error": f"it needs more than {job['bytes'] >> 20} MiB of memory"}
    except RecursionError:
        answer = {"error": "its expressions are nested too deeply"}
    except Refused as error:
        answer = {"refused": str(error)[:500]}
    except Exception as error:
        line = getattr(error, "lineno", None)
        answer = {"error": (f"line {line}: " if line else "") + (str(error) or type(error).__name__)[:500]}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
