"""
The detectors of attacks: the tables of harmless and harmful texts, and the recorded runs.
"""

from __future__ import annotations

import gzip
import json

import pytest
from detecting import found, table
from recordings import AIRLINE, needs_airline

from eventbus.policies import DEFAULT_BLOCKED_PATTERNS, DEFAULT_PII_PATTERNS


class TestAttacks:
    """The default blocked patterns."""

    @pytest.mark.parametrize("name", ["harmless.txt", "harmful.txt"])
    def test_the_tables_have_hundreds_of_rows(self, name):
        """Each table has more than 300 texts, and none twice."""
        rows = table(name)
        assert len(rows) > 300
        assert len(set(rows)) == len(rows)

    def test_every_harmful_text_is_found(self):
        """What the table of harmful texts has under a rule is found by that rule."""
        missed = [
            (rule, text)
            for rule, text in table("harmful.txt")
            if not DEFAULT_BLOCKED_PATTERNS[rule].spans(text)
        ]
        assert [] == missed

    def test_no_harmless_text_is_found(self):
        """Business text, numbers, versions and code are neither an attack nor personal data."""
        wrong = {
            text: hits
            for _, text in table("harmless.txt")
            if (hits := found({**DEFAULT_BLOCKED_PATTERNS, **DEFAULT_PII_PATTERNS}, text))
        }
        assert {} == wrong

    @pytest.mark.parametrize("text", ["cats & dogs", "a; b", "see -- this", "1.2.3", "v10.4.2.1"])
    def test_what_the_original_refused_is_harmless(self, text):
        """The texts that gave the original its name are found by nothing."""
        assert {} == found({**DEFAULT_BLOCKED_PATTERNS, **DEFAULT_PII_PATTERNS}, text)

    @needs_airline
    def test_recorded_runs_are_harmless(self):
        """No prompt, argument or result of the recorded runs is an attack."""
        texts = set()
        with gzip.open(AIRLINE, "rt", encoding="utf-8") as lines:
            for line in lines:
                for message in json.loads(line)["messages"]:
                    texts.add(message.get("content") or "")
                    texts |= {call["function"]["arguments"] for call in message.get("tool_calls") or ()}
        assert len(texts) > 3000
        assert {} == {text: hits for text in texts if (hits := found(DEFAULT_BLOCKED_PATTERNS, text))}

    def test_an_attack_is_found_where_it_stands(self):
        """The span is the attack's, not the whole text's."""
        text = "Please list report.pdf; rm -rf /home for me"
        assert {"shell_injection": ["; rm -rf"]} == found(DEFAULT_BLOCKED_PATTERNS, text)

    def test_an_encoded_attack_is_the_whole_text(self):
        """What only shows when it is decoded has no place of its own in the text."""
        text = "q=%3Cscript%3Ealert(1)%3C/script%3E"
        assert {"script_injection": [text]} == found(DEFAULT_BLOCKED_PATTERNS, text)

    def test_an_encoded_text_may_be_harmless(self):
        """Percent signs and entities alone are no attack."""
        text = "q=cats%20%26%20dogs; UNION of select%20ions"
        assert {} == found(DEFAULT_BLOCKED_PATTERNS, text)

    def test_an_encoded_union(self):
        """A SELECT that goes on somebody else's is found through percent signs, too."""
        assert "sql_injection" in found(DEFAULT_BLOCKED_PATTERNS, "9%20union%20select%20name%20from%20users")

    @pytest.mark.parametrize(
        "url",
        [
            "http://1.2.3.4.5/",
            "http://999.1.1.1/",
            "http://0x/",
            "http://08.1/",
            "http://99999999999/",
            "http://5/",
            "http://example.com/",
            "http://93.184.216.34/",
            "ssh://127.0.0.1/",
            "See dict://words for that",
        ],
    )
    def test_other_addresses_pass(self, url):
        """Public hosts, what is no address, and schemes that fetch nothing are not forged."""
        assert {} == found({"ssrf": DEFAULT_BLOCKED_PATTERNS["ssrf"]}, url)
