"""
The detectors of personal data and of keys: what is found, what only looks like it, and check digits.
"""

from __future__ import annotations

import pytest
from detecting import found
from hypothesis import given
from hypothesis import strategies as st

from eventbus import _personal_data
from eventbus._personal_data import is_card, is_iban, luhn
from eventbus.policies import DEFAULT_PII_PATTERNS

LINE = f"\n{'MIIE+abc/' * 7}"
PEM = (
    f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n{LINE * 20}\n"
    "-----END RSA PRIVATE KEY-----"
)
CUT = f"-----BEGIN PRIVATE KEY-----{LINE * 3}"


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
        assert 22 == _personal_data._IBAN_LENGTHS["DE"]
        assert len(_personal_data._IBAN_LENGTHS) == sum(
            len(c.split()) for c in _personal_data._COUNTRIES.values()
        )
