"""Process-wide settings, changed for as long as any thread needs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

__all__ = ["process_setting"]


def process_setting(change: Callable[[], Generator[None]]) -> Callable[[], _GeneratorContextManager[None]]:
    """A context manager made of a generator that changes a process-wide setting, yields, and restores it.

    The first thread that enters makes the change, the last one that leaves restores it.
    """
    once, lock, entered = contextmanager(change), threading.Lock(), ExitStack()
    users = 0

    @contextmanager
    @wraps(change)
    def shared() -> Generator[None]:
        nonlocal users
        with lock:
            if users == 0:
                entered.enter_context(once())
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if users == 0:
                    entered.close()

    return shared
