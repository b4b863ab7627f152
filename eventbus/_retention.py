"""
How long a trace store keeps what it has: by age and by size, whole runs, the oldest first.
"""

from __future__ import annotations

from datetime import timedelta

import attrs


@attrs.frozen
class Retention:
    """
    What a trace store deletes in time.

    Args:
        max_age: Seconds, or a timedelta, after its last event that a run is kept; None for ever.
        max_size: Bytes that the file may have; None for any number.
    """

    max_age: float | timedelta | None = None
    max_size: int | None = None


class Sweeper:
    def __init__(self, retention: Retention) -> None:
        self._retention = retention
