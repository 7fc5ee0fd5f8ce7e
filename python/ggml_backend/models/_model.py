"""The base class of models: a scheduler that is open or closed."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .._base.errors import StateError
from ..sched.scheduler import Scheduler

__all__ = ["Model"]

M = TypeVar("M", bound="Model")

_METHODS = {
    **dict.fromkeys(("chat", "chat_prompt", "generate", "generate_all", "logits"), "TextModel"),
    "embed": "EmbeddingModel",
    "transcribe": "SpeechModel",
}
"""Methods that only one kind of model has."""


class Model:
    """A model that :func:`ggml_backend.models.load` opens. Use it in a ``with`` statement, or call ``close()``."""

    _scheduler: Scheduler | None

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError that names the class with the method, because :func:`load` returns one of three."""
            if name in _METHODS:
                raise AttributeError(f"{type(self).__name__} has no method {name!r}: it is one of {_METHODS[name]}")
            return object.__getattribute__(self, name)

    def _open(self) -> Scheduler:
        """The scheduler. StateError after ``close()``."""
        if self._scheduler is None:
            raise StateError("the model is closed")
        return self._scheduler

    def close(self) -> None:
        """Frees the memory."""
        raise NotImplementedError

    def __enter__(self: M) -> M:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
