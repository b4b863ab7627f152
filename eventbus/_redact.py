"""
What counts as a secret, and how it is masked.
"""

from __future__ import annotations

import json
import re
import string
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MASK: Final = "[REDACTED]"

_NAMES: Final = (
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "passwd",
    "password",
    "privatekey",
    "secret",
    "secretkey",
    "sessionid",
    "token",
)
_WORD: Final = re.compile(r"[A-Z]+s?(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")

# A key longer than this is judged without being remembered: what is cached must stay small.
_CACHED_KEY: Final = 128

# A JSON text longer than this, or nested in more JSON texts than this, is masked as text.
_JSON_CHARACTERS: Final = 262_144
_JSON_NESTING: Final = 4
_JSON_STARTS: Final = frozenset("{[ \t\r\n")

_TRIGGER: Final = re.compile(r"://|[=:][=:>]?|\b(?i:bearer|basic)(?:[ +]|%20)++")
_KEY_CHARACTERS: Final = string.ascii_letters + string.digits + "_-.%"
_BETWEEN: Final = " \t\"'`\\]"
_BLANKS_AND_QUOTES: Final = " \t\"'`\\"
_QUOTES_AND_BRACKETS: Final = "\"'`\\]"
_KEY_WINDOW: Final = 160
_SECOND_WORDS: Final = frozenset({"id", "ids", "key", "keys"})
_ERROR_NAMES: Final = ("error", "exception", "warning")
_PERCENT: Final = re.compile(r"%([0-9a-fA-F]{2})")
_GAP: Final = re.compile(r"[ \t]*+")
_QUOTE: Final = re.compile(r"[bBfFrRuU]{0,2}(\\*+[\"'])")
_QUOTED: Final = {
    '"': re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL),
    "'": re.compile(r"(?:[^'\\]++|\\.)*+", re.DOTALL),
}
_BARE: Final = re.compile(r"(?:[^\s&\"',;()\[\]{}]++|[,;)\]}](?=[^\s&\"']))*+")
_OPENERS: Final = frozenset("([{")
_CALL: Final = re.compile(r"[\w.]++(?=[(\[{])")
_HEADER: Final = re.compile(r"(?:=\"[^\"\r\n]*+\"|[^\r\n\"'])*+")
_STRINGS: Final = r"\"(?:[^\"\\]++|\\.)*+\"?|'(?:[^'\\]++|\\.)*+'?"
_BRACKETS: Final = {
    opener: re.compile(rf"{_STRINGS}|[\{opener}\{closer}]", re.DOTALL)
    for opener, closer in ("[]", "{}", "()", "<>")
}
_SCHEMES: Final = re.compile(r"(?:(?i:bearer|basic|digest|token)(?:[ +]|%20)++)++")
_MARKS: Final = re.compile(r"[=:>]{1,2}\Z")
_USERINFO: Final = re.compile(r"[^\s/?#:@\"<>]*+:([^\s/?#\"<>]*)@")
_BASIC: Final = re.compile(r"[A-Za-z0-9+/=_-]{8,}+")
_PROSE: Final = re.compile(r"[A-Za-z]?[a-z_/-]*+")


# Of a name that stands in one word, or in two that follow each other, one half stands in one.
_HALVES: Final = re.compile(
    "|".join(f"{name[: (len(name) + 1) // 2]}|{name[len(name) // 2 :]}" for name in _NAMES)
)


def _judge(key: str) -> bool:
    if _HALVES.search(key.lower()) is None:
        return False
    words = [word.lower() for word in _WORD.findall(key)]
    if len(words) > 1 and words[-1] == "tokens":
        return False
    previous = ""
    for word in words:
        stem = word.removesuffix("s")
        if previous + stem in _NAMES:
            return True
        if stem.endswith(_NAMES) and (word == "tokens" or not word.endswith("tokens")):
            return True
        if word.startswith(("password", "passwd")):
            return True
        previous = word
    return False


_judge_once = lru_cache(maxsize=4096)(_judge)


def is_secret(key: str) -> bool:
    """
    Tell whether a key names a secret.

    The key is split into words at case changes, digits, `_`, `-`, `.` and spaces. It names a secret if
    one of them, or two that follow each other, is an api key, an authorization, a password (or passwd), a
    secret, a token, a cookie, a credential, a private key or a session id; plurals and words that end in
    one (`accesstoken`) included. A key that ends in `tokens` after another word (`max_tokens`) is a count.

    Args:
        key: Any text; what is decided is remembered for short ones.

    Returns:
        Whether values under the key are to be masked.
    """
    return _judge_once(key) if len(key) <= _CACHED_KEY else _judge(key)


def default_redact(path: tuple[str, ...], value: Any) -> Any:
    """
    Mask a value if it is, or holds, a secret: what `configure(redact=...)` replaces.

    Strings and bytes are masked whole when any key of the path names a secret. Other strings are looked
    into: as JSON if they look like it, as text otherwise. Numbers, bools and None are never touched.

    Args:
        path: The keys that lead to the value, outermost first; positions in lists are their digits.
        value: One leaf of a payload.

    Returns:
        The value, or what may be shown of it. Runs on the thread that writes the line, row or span.
    """
    if isinstance(value, str):
        if any(map(is_secret, path)):
            return MASK
        # An exact copy: a subclass may answer anything for its methods.
        return _redact_text(str.__str__(value), 0)
    if isinstance(value, bytes | bytearray | memoryview) and any(map(is_secret, path)):
        return MASK
    return cast("object", value)


def apply(redact: Callable[[tuple[str, ...], Any], Any], path: tuple[str, ...], value: Any) -> Any:
    """
    Ask a redact function about one value; one that raises gets the value masked.

    Args:
        redact: The default, or a user's.
        path: The keys that lead to the value.
        value: One leaf of a payload.

    Returns:
        What the function answered, or the mask. BaseException that is no Exception goes through.
    """
    try:
        return redact(path, value)
    except Exception:
        return MASK


def redact_text(text: str) -> str:
    """
    Mask the secrets in a text that no key above names as one, JSON texts by their keys.

    Args:
        text: Any text. It is parsed if it looks like JSON and is at most 256 Ki characters long, and
            written again only if something in it was masked.

    Returns:
        The text itself, or one with the mask in place of secrets.
    """
    # Nearly all short texts are done here; what follows would find nothing in them either.
    if text.isalnum():
        return text
    if "=" not in text and ":" not in text and "{" not in text and "[" not in text:
        low = text.lower()
        if "bearer" not in low and "basic" not in low:
            return text
    return _redact_text(text, 0)


def _redact_text(text: str, nesting: int) -> str:
    if (
        text[:1] in _JSON_STARTS
        and text[:64].lstrip()[:1] in {"{", "["}
        and len(text) <= _JSON_CHARACTERS
        and nesting < _JSON_NESTING
        and _may_hold_secrets(text)
    ):
        try:
            parsed = json.loads(text, object_pairs_hook=_unique)
            changes: list[str] = []
            masked = _redact_parsed(parsed, secret=False, nesting=nesting + 1, changes=changes)
            return json.dumps(masked, ensure_ascii=False) if changes else text
        except (ValueError, RecursionError):
            pass
    return mask_text(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two equal keys the parser keeps one, so the other's secret would be neither seen nor masked;
    # and a key that holds a secret itself can only be masked as text.
    result = dict(pairs)
    if len(result) < len(pairs) or any(mask_text(key) != key for key in result):
        raise ValueError
    return result


def _redact_parsed(value: Any, *, secret: bool, nesting: int, changes: list[str]) -> Any:
    if isinstance(value, str):
        masked = MASK if secret else _redact_text(value, nesting)
        if masked != value:
            changes.append(masked)
        return masked
    if isinstance(value, dict):
        return {
            key: _redact_parsed(item, secret=secret or is_secret(key), nesting=nesting, changes=changes)
            for key, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [
            _redact_parsed(item, secret=secret, nesting=nesting, changes=changes)
            for item in cast("Iterable[Any]", value)
        ]
    return value


def _may_hold_secrets(text: str) -> bool:
    # Spelt out, not a loop: this is what ordinary text costs.
    low = text.lower()
    return (
        "token" in low
        or "key" in low
        or "word" in low
        or "secret" in low
        or "passwd" in low
        or "authorization" in low
        or "cookie" in low
        or "credential" in low
        or "session" in low
        or "%" in low
        or "\\" in low
        or "bearer" in low
        or ("basic" in low and ("basic " in low or "basic+" in low))
        or ("@" in low and "://" in low)
    )


def mask_text(text: str) -> str:
    """
    Mask what reads as a secret in free text.

    That is: the value of `key=value` and `key: value` (quoted, bracketed or bare, in query strings, with
    percent-encoded keys) where the key names a secret; what follows `Bearer`, and `Basic` if it is no plain
    word; an `Authorization` or `Cookie` header to the end of its line; the password of a URL's userinfo.
    When a value's end cannot be told, what follows is masked with it. Masking a masked text changes nothing,
    and the time taken grows with the length of the text, whatever is in it.

    Args:
        text: Any text.

    Returns:
        The text itself, or one with the mask in place of secrets.
    """
    if "=" not in text and ":" not in text:
        low = text.lower()
        if "bearer" not in low and "basic" not in low:
            return text
    elif not _may_hold_secrets(text):
        return text
    pieces: list[str] = []
    done = position = 0
    while (trigger := _TRIGGER.search(text, position)) is not None:
        mark = trigger.group()
        position = trigger.end()
        if mark == "://":
            span = _userinfo(text, position)
        elif mark[0] in "=:":
            span = _pair(text, trigger)
        elif mark[:2].lower() == "be":
            span = _value(text, position)
        else:
            span = _basic(text, position)
        if span is not None and span[1] >= done:
            pieces += text[done : span[0]], MASK
            done = position = span[1]
            # What was masked may itself be the key of what follows: `Bearer api_key: x`.
            if (marks := _MARKS.search(text[max(span[0], done - 2) : done])) is not None:
                position -= len(marks.group())
    return "".join([*pieces, text[done:]]) if pieces else text


def _userinfo(text: str, position: int) -> tuple[int, int] | None:
    match = _USERINFO.match(text, position)
    return None if match is None else match.span(1)


def _basic(text: str, position: int) -> tuple[int, int] | None:
    # "basic economy" is no credential: base64 of any use has a digit, a capital or padding inside.
    match = _BASIC.match(text, position)
    if match is None or _PROSE.fullmatch(match.group()):
        return None
    return position, _bare_end(text, match.end())


def _pair(text: str, trigger: re.Match[str]) -> tuple[int, int] | None:
    start = trigger.start()
    window = text[max(0, start - _KEY_WINDOW) : start]
    key, rest = _last_key(window.rstrip(_BETWEEN))
    low = key.lower()
    if low in _SECOND_WORDS:
        rest = rest.rstrip(" ")
        key = f"{rest[len(rest.rstrip(_KEY_CHARACTERS)) :]} {key}"
    mark = trigger.group()
    if not _names_secret(key, mark) and not _is_below_secret(window, mark):
        return None
    position = _match_end(_GAP, text, trigger.end())
    return _value(text, position, header=low.removesuffix("s").endswith(("authorization", "cookie")))


def _last_key(before: str) -> tuple[str, str]:
    rest = before.rstrip(_KEY_CHARACTERS)
    key = before[len(rest) :]
    if "%" in key:
        key = _PERCENT.sub(lambda code: chr(int(code[1], 16)), key)
    return key, rest


def _names_secret(key: str, mark: str) -> bool:
    return is_secret(key) and not (mark == ":" and key.lower().endswith(_ERROR_NAMES))


def _is_below_secret(window: str, mark: str) -> bool:
    # What stands in front of subscripts: `token[0]=`, `user[credentials][]=`.
    before = window.rstrip(_BLANKS_AND_QUOTES)
    while before.endswith("]") and (start := before.rfind("[")) >= 0:
        before = before[:start]
        if _names_secret(_last_key(before.rstrip(_QUOTES_AND_BRACKETS))[0], mark):
            return True
    return False


def _value(text: str, position: int, *, header: bool = False) -> tuple[int, int] | None:
    quote = _QUOTE.match(text, position)
    if quote is not None:
        return quote.end(), _closing_quote(text, quote)
    end = position
    if text.startswith(MASK, position):
        end += len(MASK)
    elif text[position : position + 1] in _BRACKETS:
        end = _closing_bracket(text, position)
    elif header:
        call = _CALL.match(text, position)
        end = _match_end(_HEADER, text, position if call is None else _closing_bracket(text, call.end()))
        return (position, end) if end > position else None
    elif (schemes := _SCHEMES.match(text, position)) is not None:
        quote = _QUOTE.match(text, schemes.end())
        if quote is not None:
            return position, _closing_quote(text, quote)
        end = schemes.end()
    end = _bare_end(text, end)
    return (position, end) if end > position else None


def _bare_end(text: str, position: int) -> int:
    # `SecretStr('x')` is one value, though there are quotes in it.
    end = _match_end(_BARE, text, position)
    while text[end : end + 1] in _OPENERS:
        end = _match_end(_BARE, text, _closing_bracket(text, end))
    return end


def _match_end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _closing_quote(text: str, quote: re.Match[str]) -> int:
    opening, position = quote[1], quote.end()
    if len(opening) == 1:
        match = _QUOTED[opening].match(text, position)
        return len(text) if match is None else match.end()
    # Inside a text that is quoted itself: the end is the same run of backslashes, and not a longer one.
    while (end := text.find(opening, position)) >= 0:
        if text[end - 1] != "\\" or end == quote.end():
            return end
        position = end + 1
    return len(text)


def _closing_bracket(text: str, position: int) -> int:
    opener = text[position]
    depth = 0
    for match in _BRACKETS[opener].finditer(text, position):
        mark = match.group()
        if mark == opener:
            depth += 1
        elif len(mark) == 1 and mark not in "\"'":
            depth -= 1
            if depth == 0:
                return match.end()
    return len(text)
