"""
Durations as people read them.
"""

from __future__ import annotations

import pytest

from eventbus._durations import show_seconds


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 µs"),
        (0.00034, "340 µs"),
        (0.0009996, "1 ms"),
        (0.02545, "25.4 ms"),
        (0.25, "250 ms"),
        (0.9996, "1 s"),
        (3.214, "3.21 s"),
        (30, "30 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (3725, "1 h 2 min"),
        (86400, "1 d"),
        (40 * 86400 + 7200, "40 d 2 h"),
    ],
)
def test_a_duration_has_a_unit_that_suits_it(seconds: float, shown: str) -> None:
    """
    Three digits, or two units.
    """
    assert shown == show_seconds(seconds)
