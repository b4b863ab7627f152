"""
The grammar of a log line: written and read back.
"""

from __future__ import annotations

import json
import math
import re
import time
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ._frames import UNPRINTABLE, error_frames, error_message, error_name
from ._plain import CUT, Limits, Walk, plain
from ._redact import MASK, default_redact, is_secret, redact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ._plain import Redact

NO_CID: Final = "--------"

#: Categories whose third word names what the line is about; `FAIL` is followed by it, or else by fields.
SUBJECTS: Final = frozenset({"GATE", "HOOK", "LOOP", "STEP", "TOOL"})
_CATEGORIES: Final = SUBJECTS | {"CONTEXT", "INF", "MAX", "MODEL", "TOOLS", "TURN"}

# Fields whose value is a list, also when it has one item or none.
_LISTS: Final = frozenset({"pending"})

_VALUE: Final = 256
# With its newline a line fills one page at most, which a pipe takes in one piece.
_LINE_BYTES: Final = 4095
_ELLIPSIS_BYTES: Final = 3

# What these cut would not be read back anyway: 256 characters of brackets nest 128 levels deep, and every
# further node takes two characters at least.
_LIMITS: Final = Limits(depth=_VALUE // 2, nodes=_VALUE, text=_VALUE, total=16 * _VALUE)

_FRACTIONS: Final = tuple([f".{millisecond:03d}Z" for millisecond in range(1000)])
_EPOCH: Final = "1970-01-01T00:00:00.000Z"
_HEAD: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{3})Z(?: |$)"
)
_FIELD: Final = re.compile(r"([^\s=\"\\\[\],]+)=")
_NO_NAME: Final = re.compile(r"[\s=\"\\\[\],]")
_ITEM: Final = re.compile(r"[^\s=\"\\\[\],]+")


def make_encode(separators: tuple[str, str]) -> Callable[[Any], str]:
    """
    Make a function that writes what `plain` has made as JSON, as it is but for what JSON escapes.

    `JSONEncoder.encode` makes an encoder for each value, which takes longer than the value.

    Args:
        separators: What stands between items, and between a key and its value.
    """
    encoder = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=separators)
    make: Any = vars(json.encoder).get("c_make_encoder")
    item, key = separators
    try:
        chunks = make(None, encoder.default, encode_basestring, None, key, item, False, False, True)
    except TypeError:  # pragma: no cover - where json has no C encoder, or its arguments differ
        return encoder.encode
    return lambda value: "".join(chunks(value, 0))


_encode: Final = make_encode((", ", ": "))
_decode: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().raw_decode


class Line(NamedTuple):
    """
    What one line says, before it is text.

    Attributes:
        words: The constants it begins with, such as `("TOOL", "FAIL")`.
        subject: What it is about, by name: `("tool", "lookup_order")`. The line has the value alone, after
            the words, a list as `[a, b]`; the name is for the JSON output and for redaction.
        fields: Written `key=value` in this order; those that are None are left out. `data` is written as
            JSON, after all others. A line has `data` or an error, not both.
        error: What went wrong, an exception or a reason in words; it ends the line.
    """

    words: tuple[str, ...]
    subject: tuple[str, Any] | None = None
    fields: Mapping[str, Any] = MappingProxyType({})
    error: BaseException | str | None = None


class ParsedLine(NamedTuple):
    """
    What a line said.

    Attributes:
        timestamp: Seconds since the epoch, to the millisecond.
        cid: The correlation id, None for `--------`.
        words: The constants, and the subject after them; of a list, its items.
        fields: Texts by name; lists where the line has `[a, b]`; `data` is what its JSON says, or the text
            of it that is left if it was cut.
        error: The error as the line shows it, frames included, or None.
    """

    timestamp: float
    cid: str | None
    words: tuple[str, ...]
    fields: dict[str, Any]
    error: str | None


def body(line: Line, redact: Redact = default_redact) -> str:
    """
    Write what a line says, without its timestamp and id.

    A value stands bare if it is printable and has no space, `"`, `=` or backslash; otherwise it is a JSON
    string, its unprintables escaped. So that what is written can be read, a subject is quoted too when it is
    empty or begins with `[`, an item of a list when it is empty or has `,`, `[` or `]`, and another value
    that begins with `[` where it would read as a list. True is `yes` and False is `no`; what is neither text
    nor number nor list is what `plain` makes of it, as JSON. Values are cut at 256 characters.

    Args:
        line: What to say. Its values may be anything.
        redact: Asked about each value, `data` and lists by their leaves, with the name as path; a field for
            which it gives None is left out.

    Returns:
        One printable text. No Exception of a value's own methods comes out. Runs on the caller's thread.
    """
    parts = [*line.words]
    ordinary = redact is default_redact
    if line.subject is not None:
        name, value = line.subject
        if ordinary and type(value) is str and value.isidentifier() and _is_open(name, len(value)):
            parts.append(value)
        else:
            parts.append(_subject(_copy(name, value, redact)))
    data = None
    for name, value in line.fields.items():
        if name == "data":
            data = value
        elif ordinary and type(value) is str and value.isidentifier() and _is_open(name, len(value)):
            parts.append(f"{name}={value}")
        elif value is not None:
            copy = _copy(name, value, redact)
            if copy is not None:
                parts.append(f"{_name(name)}={_value(name, copy)}")
    if data is not None:
        parts.append(f"data={_data(data, redact)}")
    if line.error is not None:
        error = error_text(line.error, redact)
        # A reason that begins like a field would be read as one.
        parts.append(error.replace("=", "\\x3d", 1) if _FIELD.match(error) else error)
    return " ".join(parts)


def error_text(error: BaseException | str, redact: Redact = default_redact) -> str:
    """
    Write an error: `RuntimeError: boom (agent.py:12 in ask < app.py:40 in main)`.

    Args:
        error: An exception, with three frames at most, innermost first; or a reason, which stands as it is.
        redact: Asked about the error's own text, as `("error",)`.

    Returns:
        One printable text; the error's own is cut at 256 characters and its unprintables are escaped.
    """
    if not issubclass(type(error), BaseException):
        return _message(error, redact)
    error = cast("BaseException", error)
    try:
        name, frames = escape(error_name(error)), " < ".join(map(escape, error_frames(error)))
    except Exception:
        # A class can make even its name and its traceback raise.
        name, frames = UNPRINTABLE, ""
    message = _message(error_message(error), redact)
    return f"{name}{': ' if message else ''}{message}{f' ({frames})' if frames else ''}"


def escape(text: str) -> str:
    r"""
    Escape what cannot be printed as Python does: `\n`, `\x1b`, `\u2028`.

    Args:
        text: Any text, lone surrogates included; a backslash in it stays as it is.

    Returns:
        A printable text of one line.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def stamp(timestamp: float) -> str:
    """
    Write a time as ISO 8601 in UTC, rounded to milliseconds.

    Args:
        timestamp: Seconds since the epoch.

    Returns:
        Such as `2026-01-31T12:00:00.250Z`; the epoch itself for what is no time of the years 1 to 9999.
    """
    try:
        milliseconds = math.floor((timestamp + 0.0) * 1000 + 0.5)
        return f"{_second(milliseconds // 1000)}{_FRACTIONS[milliseconds % 1000]}"
    except Exception:
        return _EPOCH


def format_line(timestamp: float, cid: str | None, text: str) -> str:
    """
    Put a line together.

    Args:
        timestamp: Seconds since the epoch.
        cid: The correlation id; it is quoted and cut like a value. None is `--------`.
        text: What `body` made, or any other text: unprintables are escaped.

    Returns:
        One printable line without a newline at its end, cut at 4 KiB of UTF-8 with the newline counted in; a
        cut one ends in `…`.
    """
    if len(text) > _LINE_BYTES:
        text = text[:_LINE_BYTES]
    if not text.isprintable():
        text = escape(text)
    shown = cid if type(cid) is str and len(cid) <= _VALUE and cid.isalnum() else cid_text(cid)
    line = f"{stamp(timestamp)} {shown} {text}"
    if len(line) * 4 > _LINE_BYTES:
        encoded = line.encode()
        if len(encoded) > _LINE_BYTES:
            return encoded[: _LINE_BYTES - _ELLIPSIS_BYTES].decode(errors="ignore") + CUT
    return line


def cid_text(cid: object) -> str:
    """
    Write a correlation id as a line has it.

    Args:
        cid: The id; anything, though only texts are promised.

    Returns:
        The id itself, quoted and cut like a value if need be; `--------` for None.
    """
    if cid is None:
        return NO_CID
    text = cid_itself(cid)
    return text if text and text != NO_CID and _is_bare(text) else _quote(text)


def cid_itself(cid: object) -> str:
    """
    Return a correlation id as a text that is not quoted.

    Args:
        cid: The id; anything, though only texts are promised.

    Returns:
        The id, cut like a value; what cannot be printed is still in it.
    """
    return _cut(cid if type(cid) is str else _spell(plain(cid, limits=_LIMITS).value))


def parse_line(text: str) -> ParsedLine:
    """
    Read a line back.

    Texts come out as they went in, error texts as they are shown. A line of a user's own, such as
    `ORDER PLACED id=A1 total=9.5`, is read by the same grammar: `key=value` anywhere is a field, and all
    else is words; only after `FAIL` as the second word, what follows words and fields is the error. What was
    cut with the line's end is read as far as it goes.

    Args:
        text: One line, its newline or not.

    Returns:
        Its parts.

    Raises:
        ValueError: The text does not begin with a timestamp and an id, as every line does.
    """
    text = text.removesuffix("\n").removesuffix("\r")
    head = _HEAD.match(text)
    timestamp = None if head is None else _seconds(*map(int, head.groups()))
    if head is None or timestamp is None:
        msg = f"{_shown(text)} is no eventbus line: it does not begin with a time like {_EPOCH!r}."
        raise ValueError(msg)
    if head.end() >= len(text) or text[head.end()] == " ":
        msg = f"{_shown(text)} is no eventbus line: no correlation id follows the time ({NO_CID!r} is none)."
        raise ValueError(msg)
    cid, end = _take(text, head.end())
    return ParsedLine(
        timestamp, None if text[head.end() : end] == NO_CID else cid, *_parse_body(text, end + 1)
    )


@lru_cache(maxsize=1024)
def _is_open(name: str, size: int) -> bool:
    # Nearly always: nothing to cut, to mask or to quote in an identifier of that size.
    return size <= _VALUE and name.isidentifier() and not is_secret(name)


def _copy(name: str, value: object, redact: Redact) -> object:
    if redact is default_redact and type(value) is str and len(value) <= _VALUE:
        # What `plain` does to a text, without the rest of it.
        masked = MASK if is_secret(name) else redact_text(value)
        if len(masked) <= _VALUE:
            return masked
    return plain(value, redact=redact, path=(name,), limits=_LIMITS).value


def _is_bare(text: str) -> bool:
    return text.isalnum() or (
        text.isprintable() and " " not in text and '"' not in text and "=" not in text and "\\" not in text
    )


def _quote(text: str) -> str:
    return _escape_json(encode_basestring(text))


def _escape_json(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else encode_basestring_ascii(character)[1:-1]
        for character in text
    )


def _cut(text: str) -> str:
    return text if len(text) <= _VALUE else text[: _VALUE - 1] + CUT


def _spell(copy: object) -> str:
    if type(copy) is str:
        return copy
    if copy is True or copy is False:
        return "yes" if copy else "no"
    return _cut(_encode(copy))


def _name(name: str) -> str:
    if name.isidentifier():
        return name
    return _NO_NAME.sub("_", escape(_cut(name))) or "_"


def _subject(copy: object) -> str:
    if isinstance(copy, list):
        return _list(cast("Iterable[object]", copy))
    text = "" if copy is None else _spell(copy)
    return text if text and text[0] != "[" and _is_bare(text) else _quote(text)


def _value(name: str, copy: object) -> str:
    if isinstance(copy, list):
        return _list(cast("Iterable[object]", copy))
    text = _spell(copy)
    reads_as_list = text[:1] == "[" and (name in _LISTS or text[-1] == ",")
    return text if _is_bare(text) and not reads_as_list else _quote(text)


def _list(items: Iterable[object]) -> str:
    parts: list[str] = []
    room = _VALUE
    for item in items:
        text = _spell(item)
        part = text if _ITEM.fullmatch(text) and text.isprintable() else _quote(text)
        room -= len(part) + 2
        if room < 0 and parts:
            parts.append(CUT)
            break
        parts.append(part)
    return f"[{', '.join(parts)}]"


def _data(data: object, redact: Redact) -> str:
    text = _encode(Walk(redact, _LIMITS).copy(data, ("data",)))
    return _cut(text if text.isprintable() else _escape_json(text))


def _message(text: object, redact: Redact) -> str:
    return escape(_spell(_copy("error", text, redact)))


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    year, month, day, hour, minute, second = time.gmtime(seconds)[:6]
    if not 1 <= year <= 9999:
        raise ValueError
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}"


def _seconds(
    year: int, month: int, day: int, hour: int, minute: int, second: int, milliseconds: int
) -> float | None:
    from datetime import UTC, datetime

    try:
        moment = datetime(year, month, day, hour, minute, second, milliseconds * 1000, UTC)
    except ValueError:
        return None
    return moment.timestamp()


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + CUT)


def _parse_body(text: str, position: int) -> tuple[tuple[str, ...], dict[str, Any], str | None]:
    words: list[str] = []
    fields: dict[str, Any] = {}
    while position < len(text):
        if (field := _FIELD.match(text, position)) is not None:
            fields[field[1]], position = _take_value(field[1], text, field.end())
        elif _error_is_next(words, fields):
            return tuple(words), fields, text[position:]
        elif (found := _take_list(text, position)) is not None:
            words += found[0]
            position = found[1]
        elif text[position] != " ":
            word, position = _take(text, position)
            words.append(word)
        # Past the space that ends each of these, or one of several in a user's own text.
        position += 1
    return tuple(words), fields, None


def _error_is_next(words: list[str], fields: dict[str, Any]) -> bool:
    if words[1:2] == ["FAIL"]:
        return len(words) > 2 or words[0] not in SUBJECTS
    return bool(words and fields) and words[0] in _CATEGORIES


def _take_value(name: str, text: str, position: int) -> tuple[Any, int]:
    if name == "data":
        try:
            value, end = _decode(text, position)
        except (ValueError, RecursionError):
            end = -1
        else:
            if text[end : end + 1] in {"", " "}:
                return value, end
        if text.endswith(CUT):
            return text[position:], len(text)
    found = _take_list(text, position)
    if found is not None and (name in _LISTS or len(found[0]) > 1):
        return found
    return _take(text, position)


def _take(text: str, position: int) -> tuple[str, int]:
    if text.startswith('"', position):
        try:
            value, end = _decode(text, position)
        except ValueError:
            # The quote was cut with the line.
            return text[position + 1 :], len(text)
        if text[end : end + 1] in {"", " "}:
            return value, end
    end = text.find(" ", position)
    end = len(text) if end < 0 else end
    return text[position:end], end


def _take_list(text: str, position: int) -> tuple[list[str], int] | None:
    if not text.startswith("[", position):
        return None
    items: list[str] = []
    end = position + 1
    while not (items == [] and text.startswith("]", end)):
        if text.startswith('"', end):
            try:
                item, end = _decode(text, end)
            except ValueError:
                return None
            items.append(item)
        elif (bare := _ITEM.match(text, end)) is not None:
            items.append(bare.group())
            end = bare.end()
        else:
            return None
        if not text.startswith(", ", end):
            break
        end += 2
    if text.startswith("]", end) and text[end + 1 : end + 2] in {"", " "}:
        return items, end + 1
    return None
