"""Work on several Python threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_threads(n: int, function: Callable[[int], None]) -> None:
    """Calls function(0) to function(n - 1) on one thread each. Raises the first error, or fails if
    a thread does not end."""
    errors: list[BaseException] = []

    def guarded(i: int) -> None:
        try:
            function(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads), "deadlock"
    if errors:
        raise errors[0]
