"""
Which ids a text may mean that somebody has pasted.
"""

from __future__ import annotations

import json

import pytest

from eventbus._lines import escape, format_line
from eventbus._pasted import WORDS, read_pasted

LINE = format_line(1000.0, "run 1", 'TOOL OK lookup data={"cid": "other"}')
COLOURED = LINE.replace('"run 1"', '\x1b[36m"run 1"\x1b[0m')


class TestLines:
    """A line that says which part of it is the id."""

    @pytest.mark.parametrize(
        "text",
        [
            LINE,
            f"  {LINE}\r\n",
            COLOURED,
            f"web-1  | {LINE}",
            f"app.log:12:{LINE}",
            f"Jan 31 12:00:00 host python[123]: {LINE}",
            f"2026-01-31T12:00:00.123456789Z stderr F {LINE}",
            json.dumps({"log": LINE + "\n", "stream": "stderr"}).replace('\\"', '"'),
            json.dumps({"event": "INF START", "cid": "run 1"}),
            "web-1  | " + json.dumps({"cid": "run 1", "message": format_line(1.0, "other", "X")}),
            json.dumps({"seq": 3, "correlation_id": "run 1"}),
        ],
    )
    def test_its_id_is_meant(self, text):
        """Whatever colours it has, and whoever has put something before it."""
        pasted = read_pasted(text)
        assert ([text, "run 1"], "run 1", []) == pasted

    def test_of_two_times_the_first_is_likelier(self):
        """A collector writes times as we do."""
        text = format_line(1.0, "INFO", LINE)
        assert ([text, "INFO", "run 1"], "INFO", []) == read_pasted(text)

    @pytest.mark.parametrize("text", [format_line(1.0, None, "ORDER PLACED id=A1"), '{"cid": null}'])
    def test_a_line_without_an_id(self, text):
        """None of its words is taken for one."""
        assert ([text], None, []) == read_pasted(text)


class TestTexts:
    """Any other text."""

    def test_an_id(self):
        """As it stands, then without the space around it."""
        assert ([" run-1\n", "run-1"], "run-1", ["run-1"]) == read_pasted(" run-1\n")

    def test_an_id_as_a_line_quotes_it(self):
        """Without its quotes."""
        assert "run 1" == read_pasted('"run 1"').beginning
        assert '"run' == read_pasted('"run').beginning

    @pytest.mark.parametrize("cid", ["a\nb", "a\x1b[2Jb", "\u202ea", "\U000e0001a", "größe\t\\q"])
    def test_an_id_as_the_commands_show_it(self, cid):
        """What cannot be printed is spelt out there."""
        assert cid in read_pasted(escape(cid)).ids

    @pytest.mark.parametrize("text", ["{", "{}", '{"cid": 3}', "[" * 100_000, "{" * 3, '{"a":' * 100_000])
    def test_what_only_looks_like_json(self, text):
        """It is a text like any other."""
        assert text == read_pasted(text).beginning

    def test_words(self):
        """Of an application's own line, which has the id wherever it likes; so many at most."""
        words = read_pasted("12:00 INFO [cid='run-1'] (run-2)").words
        assert ["12:00", "INFO", "cid", "run-1", "run-2"] == words
        assert WORDS == len(read_pasted("x " * 1000).words)
        assert WORDS + 1 == len(read_pasted("2026-01-01T00:00:00.000Z x " * 1000).ids)

    def test_a_time_that_is_none(self):
        """The thirteenth month begins no line."""
        assert "2026-13-01T00:00:00.000Z x" == read_pasted("2026-13-01T00:00:00.000Z x").beginning
