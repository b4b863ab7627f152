"""
Durations as people read them, with a unit that suits each.
"""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 1e11
"""Seconds; a number beyond them is no duration of any run."""
_CLOCK: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def sound_seconds(seconds: float | None) -> float:
    """
    Return a number of seconds that can be shown, whoever wrote it into a file.

    Args:
        seconds: Anything; what is negative or no number counts as none, and there is a longest.
    """
    return min(seconds, _LONGEST) if seconds is not None and seconds > 0 else 0.0


def show_seconds(seconds: float) -> str:
    """
    Write a duration with a unit that suits it: `340 µs`, `25.4 ms`, `3.21 s`, `2 min 5 s`, `1 h 2 min`.

    Args:
        seconds: How long; what is no number of seconds is 0.

    Returns:
        Three digits, or two units.
    """
    seconds = sound_seconds(seconds)
    for limit, unit, factor in ((0.0009995, "µs", 1e6), (0.9995, "ms", 1e3), (59.95, "s", 1)):
        if seconds < limit:
            number = seconds * factor
            digits = 0 if number >= 99.95 else 1 if number >= 9.995 else 2
            text = f"{number:.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
    larger, large, smaller, small = next(
        units for units in _CLOCK if round(seconds / units[2]) >= units[0] // units[2]
    )
    whole, rest = divmod(round(seconds / smaller), larger // smaller)
    return f"{whole:,} {large} {rest} {small}" if rest else f"{whole:,} {large}"
