"""The base class of models: a scheduler that is open or closed."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from .._base.errors import StateError
from ..sched.scheduler import Scheduler

__all__ = ["Model"]

M = TypeVar("M", bound="Model")


class Model:
    """A model that :func:`ggml_backend.models.load` opens. Use it in a ``with`` statement, or call ``close()``."""

    _scheduler: Scheduler | None

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
