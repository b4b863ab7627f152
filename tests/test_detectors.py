"""
What a detector may answer, and where it is asked.
"""

from __future__ import annotations

import pytest

from eventbus.policies import Detector


class TestDetector:
    """What a detector may answer."""

    def test_spans_are_sorted(self):
        """They come in the order of the text, whatever the order of the answer."""
        assert [(0, 1), (2, 3)] == Detector(lambda text: [(2, 3), (0, 1)]).spans("abc")

    @pytest.mark.parametrize("span", [None, (1,), (1, 2, 3), (2, 1), (0, 9), (-1, 1), ("a", "b"), 3, (1, 1)])
    def test_anything_else_is_refused(self, span):
        """What is no span within the text is a TypeError that shows it."""
        with pytest.raises(TypeError, match="must answer pairs"):
            Detector(lambda text: [span]).spans("abc")

    def test_where_is_a_known_place(self):
        """One place may be given as it is; an unknown one, or none, is a ValueError."""
        assert frozenset({"result"}) == Detector(lambda text: [], where="result").where
        for where in ({"elsewhere"}, ()):
            with pytest.raises(ValueError, match="must name some of arguments, prompt, result"):
                Detector(lambda text: [], where=where)
