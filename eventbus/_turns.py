"""
The turns of a run, as something to loop over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._run import RunBase


class Turns:
    """
    The turns of a run, for a plain `for` loop.
    """

    def __init__(self, run: RunBase, limit: int | None) -> None:
        self._run = run
        self._left = limit

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        run = self._run
        run._must_be_open()
        last = self._left == 0
        run._next_turn(last=last)
        if last or run._over:
            raise StopIteration
        if self._left is not None:
            self._left -= 1
        return run.turn
