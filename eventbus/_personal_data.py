"""
The detectors of personal data and of keys: each takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from ._detectors import Detector, Find, Span, as_seen, known

_EMAIL: Final = known(
    r"(?:(?<![\w.%+-])[\w.%+-]{1,64}+@|(?:(?<=%[0-9A-Fa-f]{2})|(?<![\w.%+-]))[\w.+-]{1,64}+%40)"
    r"(?:[^\W_][\w-]{0,62}+\.){1,8}([^\W\d_]{2,24}+)(?![_-]{0,8}[^\W_]|@)"
)
_NO_TLD: Final = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "py", "json", "html"})


def _find_email(text: str) -> Iterable[Span]:
    if "@" not in text and "%40" not in text:
        return
    for match in _EMAIL.finditer(text):
        # icon@2x.png is a file, and git@host: the address of a repository.
        is_remote = match.group().startswith("git@") and text[match.end() : match.end() + 1] == ":"
        if match[1].lower() not in _NO_TLD and not is_remote:
            yield match.span()


_DIGIT: Final = known(r"\d")
_PHONE: Final = known(
    r"(?<![\w+./-])(?<!\d )(?:"
    r"\+[1-9](?:[ .()-]{0,2}\d){7,14}+"
    r"|(?:1[ .-])?\([2-9]\d{2}\)[ ]?[2-9]\d{2}[ .-]\d{4}"
    r"|(?:1[ .-])?[2-9]\d{2}(?: [2-9]\d{2} |\.[2-9]\d{2}\.|-[2-9]\d{2}-)\d{4}"
    r"|\(0\d{2,4}\)[ ]?\d{3,4}[ -]?\d{3,5}"
    r"|0\d{2,4}[ /-]\d{3,4}[ -]?\d{3,5}"
    r")(?![\w+/]|[ .-]\d)"
)


_THING: Final = known(
    r"(?:\b(?:order|invoice|lot|item|batch|ticket|part|article|sku|serial|tracking|rma|model|docket"
    r"|(?:customer|account|contract|policy|reference|ref|booking|case)(?=.?(?:no|nr|num|id|#))"
    r"|(?:bestell|rechnungs|kunden|konto|artikel|auftrags|vorgangs)(?=nummer|nr)|rechnung)"
    r"[ ]?(?:number|nummer|no|nr|id|#)?"
    r"[ :.#]{0,3})\Z",
    re.IGNORECASE,
)


def _find_phone(text: str) -> Iterable[Span]:
    for match in _PHONE.finditer(text):
        # What says of itself that it is the number of something else is none of a person.
        if match.group().startswith("+") or not _THING.search(
            text[max(0, match.start() - 32) : match.start()]
        ):
            yield match.span()


_SSN: Final = known(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")


def _find_ssn(text: str) -> Iterable[Span]:
    return [match.span() for match in _SSN.finditer(text)]


_CARD: Final = known(
    r"(?<![\w.+-])(?:\d{14,19}|(?:\d{4} ){3}\d{4}(?: \d{1,3})?|(?:\d{4}-){3}\d{4}(?:-\d{1,3})?"
    r"|\d{4} \d{6} \d{4,5}|\d{4}-\d{6}-\d{4,5})(?![\w-])"
)
_LUHN: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def is_card(digits: str) -> bool:
    """
    Tell whether digits are a card's number: by the ranges and lengths of its issuers, and their sum (Luhn).
    """
    return _has_issuer(digits) and luhn(digits)


def luhn(digits: str) -> bool:
    """
    Tell whether the digit sum of ISO/IEC 7812 fits.
    """
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[::2]) + sum(_LUHN[value] for value in values[1::2])) % 10 == 0


def _has_issuer(digits: str) -> bool:
    size, two, three, four = len(digits), int(digits[:2]), int(digits[:3]), int(digits[:4])
    if size == 14:
        return two in {36, 38, 39} or 300 <= three <= 305
    if size == 15:
        return two in {34, 37}
    if size < 16 or size > 19:
        return False
    return (
        (digits[0] == "4" and size in {16, 19})
        or ((51 <= two <= 55 or 2221 <= four <= 2720) and size == 16)
        or four == 6011
        or two == 65
        or 644 <= three <= 649
        or 3528 <= four <= 3589
        or two == 62
    )


def _find_card(text: str) -> Iterable[Span]:
    for match in _CARD.finditer(text):
        if is_card("".join(character for character in match.group() if character.isdecimal())):
            yield match.span()


_IPV4: Final = known(r"(?<![\w.+-])(?:\d{1,3}\.){3}\d{1,3}(?![\w+-]|\.\d)")
_IPV6: Final = known(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,35}(?![\w:])")
_VERSION: Final = known(
    r"(?:\b(?:v|ver|version|versions|release|releases|rev|revision|build|firmware|driver|patch|update"
    r"|upgrade|kernel|section|chapter|clause|oid)"
    r"[ :.=]{0,3}|(?:[=<>~^]=|[<>~^])[ ]?)\Z",
    re.IGNORECASE,
)
_RESOLVERS: Final = frozenset({"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9"})
_SMALL: Final = 32


def _find_ip(text: str) -> Iterable[Span]:
    if "." in text:
        for match in _IPV4.finditer(text):
            parts = match.group().split(".")
            # All four small is how versions are written, and how one address in four thousand is.
            if (
                any(int(part) >= _SMALL for part in parts)
                and _is_personal(match.group())
                and not _VERSION.search(text[max(0, match.start() - 24) : match.start()])
            ):
                yield match.span()
    if ":" in text:
        for match in _IPV6.finditer(text):
            if _is_personal(match.group()):
                yield match.span()


def _is_personal(written: str) -> bool:
    # An address of a private network, of documentation or of a public resolver leads to no person.
    try:
        return ip_address(written).is_global and written not in _RESOLVERS
    except ValueError:
        return False


_IBAN: Final = known(r"(?<![\w-])[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?(?![\w-])")
_COUNTRIES: Final = {
    15: "NO",
    16: "BE",
    18: "DK FI NL",
    19: "SI",
    20: "AT EE LT LU",
    21: "CH HR LI LV",
    22: "BG DE GB IE RS",
    23: "AE GI IL",
    24: "AD CZ ES RO SA SE SK",
    25: "PT",
    26: "IS TR",
    27: "FR GR IT MC SM",
    28: "CY HU PL",
    29: "BR UA",
    31: "MT",
}
_IBAN_LENGTHS: Final = {
    country: size for size, countries in _COUNTRIES.items() for country in countries.split()
}


def _find_iban(text: str) -> Iterable[Span]:
    for match in _IBAN.finditer(text):
        # What follows it in capitals may look like one more group.
        size = _IBAN_LENGTHS.get(match.group()[:2], 0)
        ends = [end for end, character in enumerate(match.group(), 1) if character != " "]
        if 0 < size <= len(ends) and is_iban(match.group()[: ends[size - 1]]):
            yield match.start(), match.start() + ends[size - 1]


def is_iban(written: str) -> bool:
    """
    Tell whether a number of an account is sound: by the remainder of ISO 7064 (mod 97).
    """
    compact = written.replace(" ", "")
    return int("".join(str(int(character, 36)) for character in compact[4:] + compact[:4])) % 97 == 1


_KEY: Final = known(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-(?:proj-|ant-|or-)?[A-Za-z0-9_-]{20,200}"
    r"|(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{16,200}+"
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
    r"|glpat-[A-Za-z0-9_-]{20,64}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,250}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|npm_[A-Za-z0-9]{36}|hf_[A-Za-z]{30,40}|pypi-[A-Za-z0-9_-]{32,255}"
    r"|SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"
    r"|eyJ[A-Za-z0-9_-]{10,2000}+\.eyJ[A-Za-z0-9_-]{10,4000}+\.[A-Za-z0-9_-]{10,1000}+"
    r")(?![A-Za-z0-9])"
    # To its end; where that is missing, as far as it looks like one.
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----(?:END|BEGIN))){0,8000}+-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:(?:\s|\\[nr]){0,4}+[A-Za-z0-9+/=]{16,80}+){0,100}+)"
)
_KEY_STARTS: Final = (
    "sk-",
    "k_live_",
    "k_test_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "ASIA",
    "AIza",
    "npm_",
    "hf_",
    "pypi-",
    "SG.",
    "eyJ",
    "PRIVATE KEY",
)


def _find_key(text: str) -> Iterable[Span]:
    if any(start in text for start in _KEY_STARTS):
        return [match.span() for match in _KEY.finditer(text)]
    return []


def _with_digits(find: Find) -> Detector:
    return _personal(lambda text: find(text) if _DIGIT.search(text) else ())


def _personal(find: Find) -> Detector:
    return Detector(as_seen(find), stable=True)


DEFAULT_PII_PATTERNS: Final[dict[str, Detector]] = {
    "email": _personal(_find_email),
    "phone": _with_digits(_find_phone),
    "ssn": _with_digits(_find_ssn),
    "credit_card": _with_digits(_find_card),
    "ip_address": _with_digits(_find_ip),
    "iban": _with_digits(_find_iban),
    "api_key": _personal(_find_key),
}
"""Personal data, and keys by the prefixes that their issuers gave them."""
