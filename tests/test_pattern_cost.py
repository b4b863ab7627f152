"""
What searching may cost: the bound on steps, the search in windows, and texts made to be slow.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import _pattern_cost
from eventbus._detectors import known_patterns
from eventbus._pattern_cost import MOST_STEPS, OVERLAP, WINDOW, steps, windowed
from eventbus.policies import DEFAULT_BLOCKED_PATTERNS, DEFAULT_PII_PATTERNS


class TestCost:
    """What looking may cost."""

    def test_the_patterns_of_all_detectors_are_known(self):
        """So that the next test has them all: each default detector searches for one, at least."""
        assert len(known_patterns) >= len({**DEFAULT_BLOCKED_PATTERNS, **DEFAULT_PII_PATTERNS})

    @pytest.mark.parametrize("pattern", known_patterns, ids=lambda pattern: pattern.pattern[:30])
    def test_default_patterns_are_linear(self, pattern):
        """A text a hundred times as long takes at most a hundred times the steps, whatever is in it."""
        assert 100 * steps(pattern, 10_000) == steps(pattern, 1_000_000)

    @pytest.mark.parametrize(
        ("source", "at_ten"),
        [
            (r"abc", 10 * 4),
            (r"a*", 10 * 12),
            (r"a*?", 10 * 12),
            (r"a*+", 10 * 12),
            (r"(?>a*)b", 10 * 13),
            (r"a|bc", 10 * 6),
            (r"[ab]{2,3}", 10 * 5),
            (r"(?=a)b(?<!c)", 10 * 6),
            (r"(a)\1", 10 * 13),
            (r"(a)?(?(1)b|c)", 10 * 15),
            (r"(a)?(?(1)b)", 10 * 9),
            (r"a*a*", 10 * (1 + 11 + 11 * 11)),
            (r"a*[ab]", 10 * (1 + 11 + 11)),
            (r"a*b", 10 * 24),
            (r"[a\d]*b*", 10 * (1 + 11 + 11 * 11)),
            (r"[a\d]*-[\w.]*@[\s]*x.*", 10 * (4 * 24)),
            (r"[^a]*b.*", 10 * (1 + 11 + 11 * 12)),
            (r"a*A.*", 10 * (1 + 11 + 11 * 12)),
            (r"[a-c]*d.*", 10 * (1 + 11 + 11 * 12)),
            (r"[0-9]*-.*", 10 * 36),
            (r"[\W]*-.*", 10 * (1 + 11 + 11 * 12)),
            (r"(?:ab)*c.*", 10 * (1 + 22 + 11 * 12)),
            (r".*b.*", 10 * (1 + 11 + 11 * 12)),
        ],
    )
    def test_steps_of_each_construct(self, source, at_ten):
        """The bound counts every way to match at every place, within small constants."""
        assert at_ten / 2 <= steps(re.compile(source), 10) <= at_ten * 2

    @pytest.mark.parametrize("source", [r"(a+)+", r"(a|ab)*", r"(\w+\s?)*!", r"(?:a|b|ab){200}", r"(a*)*"])
    def test_repetition_of_what_repeats_has_no_bound(self, source):
        """What backtracks without end costs more than any pattern may."""
        assert steps(re.compile(source), WINDOW) > MOST_STEPS

    def test_what_is_not_known_has_no_bound(self):
        """A construct of a later Python counts as without end."""
        assert _pattern_cost._ENDLESS == _pattern_cost._cost_of_one("NEW", None, 10)[1]

    @given(st.lists(st.sampled_from(["ab", "abbbc", "c", "x" * 200, "abc " * 40]), max_size=60))
    def test_windows_find_what_the_whole_search_finds(self, pieces):
        """A pattern whose matches are no longer than the overlap finds the same in windows as at once."""
        text = "".join(pieces)
        pattern = re.compile(r"\bab{1,5}c|c\b")
        whole = [match.span() for match in pattern.finditer(text)]
        assert whole == [*windowed(pattern)(text)]

    @given(st.integers(0, 3 * WINDOW), st.integers(1, OVERLAP))
    def test_a_match_of_the_overlap_is_found_anywhere(self, before, size):
        """Wherever it stands, a match is found that is no longer than windows overlap."""
        text = f"{'.' * before}<{'a' * (size - 1)}{'.' * WINDOW}"
        pattern = re.compile(rf"<a{{{size - 1}}}")
        assert [(before, before + size)] == [*windowed(pattern)(text)]

    def test_an_anchor_at_a_window_end_is_not_the_end(self):
        """What seems to stand at the end of a text stands there."""
        text = "a" * WINDOW + "b" * WINDOW
        assert [] == [*windowed(re.compile("a$"))(text)]
        assert [(2 * WINDOW - 1, 2 * WINDOW)] == [*windowed(re.compile("b$"))(text)]

    def test_nothing_is_no_match(self):
        """A pattern that matches nothing at all finds nothing."""
        assert [] == [*windowed(re.compile("x*"))("abc")]

    @pytest.mark.skipif(sys.platform == "win32", reason="there is no limit on CPU time to set")
    def test_adversarial_texts_end(self):
        """Texts made to be slow are done within a limit that the system itself enforces."""
        done = subprocess.run(
            [sys.executable, "-c", ADVERSARIAL], capture_output=True, text=True, check=False
        )
        assert ("done\n", 0) == (done.stdout, done.returncode), done.stderr


ADVERSARIAL = r"""
import re, resource
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from eventbus._pattern_cost import windowed
from eventbus.policies import DEFAULT_BLOCKED_PATTERNS, DEFAULT_PII_PATTERNS
SEEDS = [
    "a", " ", "1 ", "@", "a@", "a.", "a@a.", "../", "..\\a/", "' or ", "' or/**/", "<a onaaa=", "<script>",
    "<script", "union select 1 ", "${j", "{{", "{{7*", "; cat ", "; echo ", "; find /", ";curl a.", "1:",
    "2001:", "[REDACTED:", "%2", "%252e", "&lt;", "eyJaaaaaaaaaa.", "(", "0 ", "+1 1", "1.1.1.", "4111 ",
    "sk-", "-----BEGIN PRIVATE KEY-----", "http://a", "jar:http://", "--\n", "data:text/html,", "javascript:",
    "<iframe src=// ", "etc/passwd ", "DE00 0000 ", " style=", "<!ENTITY ", "<?php ", "exec(",
    "-----BEGIN PRIVATE KEY-----MIIE", "\\n", "\u200b", "\u200ba@a.", "%40a.", "' or (select ",
    "order 030 9018200 ",
]
for seed in SEEDS:
    for detector in [*DEFAULT_BLOCKED_PATTERNS.values(), *DEFAULT_PII_PATTERNS.values()]:
        detector.spans(seed * (8_000 // len(seed)))
for source in (r"a.*b", r"\w+@\w+\.com", r"\s+$"):
    for seed in ("a", "a ", " ", "a@"):
        list(windowed(re.compile(source))(seed * (50_000 // len(seed))))
print("done")
"""
