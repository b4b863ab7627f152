"""
What guardrails look for: the tables of harmless and harmful texts, personal data, and what looking may cost.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import AIRLINE, needs_airline

from eventbus import _patterns as patterns
from eventbus._patterns import (
    DEFAULT_BLOCKED_PATTERNS,
    DEFAULT_PII_PATTERNS,
    MOST_STEPS,
    OVERLAP,
    WINDOW,
    Detector,
    is_card,
    is_iban,
    luhn,
    steps,
    windowed,
)

TEXTS = Path(__file__).parent / "guard_texts"


LINE = f"\n{'MIIE+abc/' * 7}"
PEM = (
    f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n{LINE * 20}\n"
    "-----END RSA PRIVATE KEY-----"
)
CUT = f"-----BEGIN PRIVATE KEY-----{LINE * 3}"


def table(name):
    """Return the rows of a table: the heading above, and the text, in which ⏎ stands for a line break."""
    heading, rows = "", []
    for line in (TEXTS / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            heading = line[2:]
        else:
            rows.append((heading, line.replace("⏎", "\n")))
    return rows


def found(detectors, text):
    """Return the names of the detectors that find something, with what they find."""
    return {
        name: [text[start:end] for start, end in spans]
        for name, detector in detectors.items()
        if (spans := detector.spans(text))
    }


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


class TestPersonalData:
    """The default patterns for personal data."""

    @pytest.mark.parametrize(
        ("rule", "text", "expected"),
        [
            ("email", "write to mia@example.com, please", "mia@example.com"),
            ("email", "Mia.O+tag@mail.example.co.uk.", "Mia.O+tag@mail.example.co.uk"),
            ("email", "<jörg@müller.example>", "jörg@müller.example"),
            ("email", "_mia@example.com_", "_mia@example.com"),
            ("email", "mia@example.com-", "mia@example.com"),
            ("email", "?to%3Dmia%40example.com&x=1", "mia%40example.com"),
            ("email", "mia\u200b@exam\u200bple.com\u200b!", "mia\u200b@exam\u200bple.com"),
            ("email", "\u200bmia\uff20example\uff0ecom", "mia\uff20example\uff0ecom"),
            ("phone", "order it at +1 415 555 2671", "+1 415 555 2671"),
            ("phone", "customer 415-555-2671", "415-555-2671"),
            ("phone", "Telefonnummer 030 9018200", "030 9018200"),
            ("phone", "+1\u00a0415\u00a0555\u2011\u200b2671", "+1\u00a0415\u00a0555\u2011\u200b2671"),
            (
                "credit_card",
                "\uff14\uff11\uff11\uff11 1111\u00a01111\u20091111",
                "\uff14\uff11\uff11\uff11 1111\u00a01111\u20091111",
            ),
            ("ip_address", "ip=93.184.216.34", "93.184.216.34"),
            ("api_key", PEM.replace("KEY", "KEY BLOCK"), PEM.replace("KEY", "KEY BLOCK")),
            ("api_key", f"a {PEM} b", PEM),
            ("api_key", PEM.replace("\n", "\\n"), PEM.replace("\n", "\\n")),
            ("api_key", f"{CUT} and so on", CUT),
            ("api_key", "-----BEGIN PRIVATE KEY----- is how", "-----BEGIN PRIVATE KEY-----"),
            ("phone", "call +1 415 555 2671 now", "+1 415 555 2671"),
            ("phone", "call +4930901820", "+4930901820"),
            ("phone", "(415) 555-2671", "(415) 555-2671"),
            ("phone", "415-555-2671", "415-555-2671"),
            ("phone", "1 415 555 2671", "1 415 555 2671"),
            ("phone", "415.555.2671", "415.555.2671"),
            ("phone", "Tel. 030 9018200", "030 9018200"),
            ("phone", "020 7946 0958", "020 7946 0958"),
            ("phone", "(0171) 1234567", "(0171) 1234567"),
            ("ssn", "SSN 123-45-6789", "123-45-6789"),
            ("credit_card", "4111 1111 1111 1111", "4111 1111 1111 1111"),
            ("credit_card", "card 4111111111111111.", "4111111111111111"),
            ("credit_card", "5555-5555-5555-4444", "5555-5555-5555-4444"),
            ("credit_card", "3782 822463 10005", "3782 822463 10005"),
            ("credit_card", "30569309025904", "30569309025904"),
            ("ip_address", "from 93.184.216.34 today", "93.184.216.34"),
            ("ip_address", "2606:4700:4700::1111", "2606:4700:4700::1111"),
            ("iban", "IBAN DE89 3704 0044 0532 0130 00", "DE89 3704 0044 0532 0130 00"),
            ("iban", "GB29NWBK60161331926819", "GB29NWBK60161331926819"),
            ("iban", "NL91 ABNA 0417 1643 00 THE END", "NL91 ABNA 0417 1643 00"),
            ("api_key", "use AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
            ("api_key", f"ghp_{'a1B2' * 9}", f"ghp_{'a1B2' * 9}"),
            ("api_key", f"sk_live_{'4eC39' * 4}", f"sk_live_{'4eC39' * 4}"),
        ],
    )
    def test_what_is_found(self, rule, text, expected):
        """A kind of personal data is found, with its own span, and by its own rule only."""
        assert {rule: [expected]} == found(DEFAULT_PII_PATTERNS, text)

    @pytest.mark.parametrize(
        "text",
        [
            "order 4111 1111 1111 1112",
            "6011 0000 0000 0005",
            "version 93.184.216.34",
            "build: 93.184.216.34",
            "2999:1:2",
            "300.184.216.34",
            "093.184.216.34",
            "1.1.1.1",
            "XX89 3704 0044 0532 0130 00",
            "DE89 3704 0044",
            "git@github.com:eventbus/eventbus",
            "+1 23",
            "+1234567890123456",
            "sk-short",
            "react@next.canary-2",
        ],
    )
    def test_what_only_looks_like_it(self, text):
        """Sums, lengths, ranges and countries tell numbers from personal data."""
        assert {} == found(DEFAULT_PII_PATTERNS, text)

    @given(st.from_regex(r"\A[0-9]{15}\Z"))
    def test_one_of_ten_digits_makes_the_sum_right(self, digits):
        """Whatever stands before, there is exactly one last digit whose sum fits."""
        assert 1 == sum(luhn(f"{digits}{last}") for last in range(10))

    @pytest.mark.parametrize(
        "digits",
        [
            "30569309025904",
            "378282246310005",
            "4111111111111111",
            "2223003122003222",
            "6011111111111117",
            "6555555555555555",
            "3530111333300000",
            "6200000000000005",
        ],
    )
    def test_cards_of_each_issuer(self, digits):
        """Numbers that issuers publish for tests are cards, and no longer are with one digit changed."""
        assert is_card(digits)
        assert not is_card(f"{digits[:-1]}{(int(digits[-1]) + 1) % 10}")

    @pytest.mark.parametrize("size", [13, 20])
    def test_no_card_has_that_many_digits(self, size):
        """Fewer than 14 digits, and more than 19, are no card."""
        assert not is_card("4" * size)

    @given(st.from_regex(r"\A[A-Z0-9]{18}\Z"))
    def test_checksum_of_an_account(self, account):
        """Exactly the check digits that the standard computes make a number sound, of those from 02 to 98."""
        sound = [check for check in range(2, 99) if is_iban(f"DE{check:02}{account}")]
        assert 1 == len(sound)

    def test_every_length_of_an_iban_has_its_countries(self):
        """Each country has one length."""
        assert 22 == patterns._IBAN_LENGTHS["DE"]
        assert len(patterns._IBAN_LENGTHS) == sum(len(c.split()) for c in patterns._COUNTRIES.values())


class TestCost:
    """What looking may cost."""

    @pytest.mark.parametrize("pattern", patterns._known_patterns, ids=lambda pattern: pattern.pattern[:30])
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
        assert patterns._ENDLESS == patterns._cost_of_one("NEW", None, 10)[1]

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


ADVERSARIAL = r"""
import re, resource
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from eventbus._patterns import DEFAULT_BLOCKED_PATTERNS, DEFAULT_PII_PATTERNS, windowed
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
