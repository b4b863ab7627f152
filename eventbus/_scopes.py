"""
Scopes that each put something in its place for the whole process, and may end in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ._registry import lock

T = TypeVar("T")


class Scopes(Generic[T]):
    """
    The scopes of one kind that are open. Safe on any thread.

    What the scope that began last has put in place is in force. Scopes of two threads or tasks overlap
    without nesting: one that ends beneath another hands what it found over to the one above it, so that the
    end of all of them gives back what was there before the first.

    Args:
        swap: Puts a value in place, and returns the one that was there.
    """

    def __init__(self, swap: Callable[[T], T]) -> None:
        self._swap = swap
        # What each found when it began, the last one on top.
        self._found: list[list[T]] = []

    @contextmanager
    def scope(self, value: T) -> Generator[None]:
        """
        Have a value in place for the code inside.
        """
        with lock:
            found = [self._swap(value)]
            self._found.append(found)
        try:
            yield
        finally:
            with lock:
                index = next(index for index, each in enumerate(self._found) if each is found)
                del self._found[index]
                if index == len(self._found):
                    self._swap(found[0])
                else:
                    self._found[index][:] = found
