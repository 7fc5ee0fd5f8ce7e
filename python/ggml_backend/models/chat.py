"""Chat templates: messages to the text that a model was trained on.

A GGUF file holds its template as the key ``tokenizer.chat_template``, in the language of Jinja2 with the variables of
``transformers``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._base.errors import FileError, InvalidArgumentError, UnsupportedError, expect, expect_bool
from .._base.errors.messages import kind_of

__all__ = ["ChatTemplate", "Message"]

Message = Mapping[str, Any]
"""``role`` ("system", "user", "assistant") and ``content``, as in the interfaces of chat services."""

_SECONDS = 5
_BYTES = 1 << 30
_CHARACTERS = 1 << 24


class ChatTemplate:
    """A template, rendered in a process with limits on time, memory and size. ``source``: its text."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        expect(source, str, "source")
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def __repr__(self) -> str:
        return f"<ChatTemplate: {len(self.source)} characters>"

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a conversation.

        add_generation_prompt: ends with the words that begin an answer.
        variables: more variables of the template, for example ``tools`` or ``enable_thinking``.

        FileError: the template is damaged, or exceeds a limit. InvalidArgumentError: it refuses these messages.
        """
        check_messages(messages)
        expect_bool(add_generation_prompt, "add_generation_prompt")
        known = {**self._tokens, "messages": list(messages), "add_generation_prompt": bool(add_generation_prompt)}
        job = {
            "path": [p for p in sys.path if p],
            "template": self.source,
            "variables": {**known, **variables},
            "seconds": _SECONDS,
            "bytes": _BYTES,
            "characters": _CHARACTERS,
        }
        answer = _run(job)
        if "missing" in answer:
            raise UnsupportedError(
                f"chat templates need the package {answer['missing']}: pip install ggml_backend[models]"
            )
        if "refused" in answer:
            raise InvalidArgumentError(f"the chat template of the file refuses the messages: {answer['refused']}")
        if "error" in answer:
            raise FileError(f"the chat template of the file fails: {answer['error']}")
        return str(answer["text"])


def _run(job: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a process that does one job."""
    try:
        data = json.dumps(job, default=_refuse)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            "messages and variables must not contain themselves, and the keys of their dictionaries must be texts"
        ) from None
    program = [sys.executable, "-I", str(Path(__file__).with_name("_render.py"))]
    try:
        done = subprocess.run(
            program, input=data, capture_output=True, text=True, timeout=2 * _SECONDS, encoding="utf-8", check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it runs for more than {2 * _SECONDS} seconds"}
    except OSError as error:
        raise UnsupportedError(
            f"chat templates run in a process of {sys.executable!r}, which does not start: {error}"
        ) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": f"it used more than {_SECONDS} seconds or {_BYTES >> 20} MiB"}
    return answer if isinstance(answer, dict) else {"error": "no answer"}


def _refuse(value: object) -> None:
    """For values that JSON does not have."""
    raise InvalidArgumentError(
        f"messages and variables must consist of texts, numbers, lists and dictionaries, not {kind_of(value)}"
    )


def check_messages(messages: object) -> None:
    """TypeError or InvalidArgumentError unless this is a list of messages."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(
            f"messages must be a list such as [{{'role': 'user', 'content': 'Hello'}}], not {kind_of(messages)}"
        )
    if not messages:
        raise InvalidArgumentError("messages is empty: give at least one message of the user")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"messages[{i}] must be a dictionary with role and content, not {kind_of(message)}")
        if not isinstance(message.get("role"), str):
            raise InvalidArgumentError(f"messages[{i}] has no role: 'system', 'user' or 'assistant'")
        if "content" not in message and "tool_calls" not in message:
            raise InvalidArgumentError(f"messages[{i}] has no content")
