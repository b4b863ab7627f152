"""Whatever a line says is one printable line, and reads back."""

from __future__ import annotations

import decimal
import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus._lines import (
    NO_CID,
    SUBJECTS,
    Line,
    body,
    error_text,
    escape,
    format_line,
    parse_line,
    stamp,
)
from eventbus._redact import MASK

NOON = 1769860800.25
CID = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "hunter2canary"

# Neither is a pair of surrogates: its halves are one character once they stand in JSON.
HOSTILE = st.text(
    st.one_of(
        st.sampled_from(list(' "=\\[],\n\r\t\x00\x1b\x7f\x85\x9b\xa0\u2028\u2029\ud800…é😀\U000e0001')),
        st.characters(codec="utf-8"),
    ),
    max_size=30,
)
VALUES = (
    HOSTILE
    | st.sampled_from(
        ["", "[a]", "[a,", "[]", "[", "[a, b]", "x=1", "data=1", NO_CID, "…", '"', "yes", "sundae"]
    )
    | st.text(min_size=250, max_size=300)
)
NAMES = st.sampled_from(["agent", "by", "reason", "id", "on", "field", "turn", "seconds"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | HOSTILE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HOSTILE, inner, max_size=4),
    max_leaves=8,
)
ERRORS = HOSTILE.map(RuntimeError) | HOSTILE | HOSTILE.map(lambda text: f"a=1 {text}") | st.none()


def keep(path: tuple[str, ...], value: Any) -> Any:
    """Redact nothing."""
    return value


def cut(text: str) -> str:
    """Cut a value as a line does."""
    return text if len(text) <= 256 else text[:255] + "…"


def raised(message: str = "boom") -> RuntimeError:
    """Give an error that was raised here."""
    with pytest.raises(RuntimeError) as info:
        raise RuntimeError(message)
    return info.value


class Broken(Exception):
    """Cannot say what happened."""

    def __str__(self) -> str:
        raise self


class Hostile:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def __class__(self) -> Any:
        raise RuntimeError


LINES: list[tuple[Line, str]] = [
    (Line(("INF", "START"), None, {"agent": "sundae"}), "INF START agent=sundae"),
    (Line(("INF", "START"), None, {"agent": None}), "INF START"),
    (
        Line(("INF", "DENY"), None, {"agent": "sundae", "by": "Guardrails.prompt", "reason": "too long"}),
        'INF DENY agent=sundae by=Guardrails.prompt reason="too long"',
    ),
    (
        Line(("INF", "FAIL"), None, {"agent": "sundae"}, RuntimeError("boom")),
        "INF FAIL agent=sundae RuntimeError: boom",
    ),
    (Line(("INF", "FAIL"), None, {}, RuntimeError()), "INF FAIL RuntimeError"),
    (
        Line(("TOOLS", "RECV"), ("tools", ["lookup_order", "send_email"])),
        "TOOLS RECV [lookup_order, send_email]",
    ),
    (
        Line(("TOOL", "START"), ("tool", "lookup_order"), {"id": "call_0"}),
        "TOOL START lookup_order id=call_0",
    ),
    (
        Line(("TOOL", "OK"), ("tool", "lookup_order"), {"id": "call_0", "data": {"total": 12}}),
        'TOOL OK lookup_order id=call_0 data={"total": 12}',
    ),
    (
        Line(("TOOL", "OK"), ("tool", "lookup_order"), {"data": "done", "id": "call_0"}),
        'TOOL OK lookup_order id=call_0 data="done"',
    ),
    (
        Line(
            ("GATE", "DENY"),
            ("tool", "process_refund"),
            {"id": "call_1", "by": "NewGuard.check", "reason": "over limit", "applied": False},
        ),
        'GATE DENY process_refund id=call_1 by=NewGuard.check reason="over limit" applied=no',
    ),
    (Line(("GATE", "EDIT"), ("tool", "x"), {"applied": True}), "GATE EDIT x applied=yes"),
    (
        Line(("MAX", "TURNS"), None, {"turn": 100, "pending": ["lookup_order"]}),
        "MAX TURNS turn=100 pending=[lookup_order]",
    ),
    (
        Line(("HOOK", "SLOW"), ("hook", "Audit.audit"), {"on": "XEvent", "seconds": 2.14}),
        "HOOK SLOW Audit.audit on=XEvent seconds=2.14",
    ),
    (
        Line(("LOOP", "FAIL"), ("name", "morning report"), {"agent": "Scout"}, "stopped by hand"),
        'LOOP FAIL "morning report" agent=Scout stopped by hand',
    ),
]


@pytest.mark.parametrize(("line", "text"), LINES, ids=[text for _, text in LINES])
def test_a_line_is_written(line: Line, text: str) -> None:
    """Byte for byte, with redaction of one's own or not."""
    assert text == body(line)
    assert text == body(line, keep)


def test_a_line_begins_with_its_time_and_id() -> None:
    """ISO 8601 in UTC, and eight dashes where there is no id."""
    assert f"2026-01-31T12:00:00.250Z {CID} INF START" == format_line(NOON, CID, "INF START")
    assert "2026-01-31T12:00:00.250Z -------- INF START" == format_line(NOON, None, "INF START")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "a="),
        ("a,b[c]", "a=a,b[c]"),
        ("[a]", "a=[a]"),
        ("[a,", 'a="[a,"'),
        ("é😀", "a=é😀"),
        ("a b", 'a="a b"'),
        ('a"b', 'a="a\\"b"'),
        ("a=b", 'a="a=b"'),
        ("a\\b", 'a="a\\\\b"'),
        ("\n\x1b\x7f\x85\xa0\u2028\ud800", r'a="\n\u001b\u007f\u0085\u00a0\u2028\ud800"'),
        ("\U000e0001", r'a="\udb40\udc01"'),
        ("x" * 256, "a=" + "x" * 256),
        ("x" * 257, "a=" + "x" * 255 + "…"),
        ("x" * 1_000_000, "a=" + "x" * 255 + "…"),
        (5, "a=5"),
        (float("nan"), "a=NaN"),
        (decimal.Decimal("9.50"), "a=9.50"),
        (b"x y", 'a="x y"'),
        ({"b": 1}, 'a="{\\"b\\": 1}"'),
        ([], "a=[]"),
        (("b", 1, "c d", "e,f", "", "[", None, True), 'a=[b, 1, "c d", "e,f", "", "[", null, yes]'),
        (["b" * 200, "c" * 200, "d"], "a=[" + "b" * 200 + ", …]"),
        (["b" * 300], "a=[" + "b" * 255 + "…]"),
        (Broken, f'a="<class {__name__}.Broken>"'),
    ],
    ids=map(str, range(24)),
)
def test_a_value_is_bare_or_a_json_string(value: object, text: str) -> None:
    """Bare where that can be read back, cut at 256 characters."""
    assert text == body(Line((), None, {"a": value}))


@pytest.mark.parametrize(
    ("value", "text"), [("", '""'), ("[a]", '"[a]"'), (None, '""'), ("a=b", '"a=b"'), (5, "5")]
)
def test_a_subject_is_quoted_where_it_could_be_mistaken(value: object, text: str) -> None:
    """It has no name in front of it."""
    assert f"TOOL OK {text}" == body(Line(("TOOL", "OK"), ("tool", value)))


@pytest.mark.parametrize(("name", "text"), [("a b", "a_b"), ("", "_"), ("a=\n[", "a__n_"), ("a.b", "a.b")])
def test_a_name_is_one_word(name: str, text: str) -> None:
    """Names come from payloads as well."""
    assert f"{text}=1" == body(Line((), None, {name: 1}))


def test_a_field_that_a_redact_function_drops_is_left_out() -> None:
    """None means the same as in the payload."""
    assert "A b=2" == body(
        Line(("A",), None, {"a": "1", "b": 2}), lambda path, value: None if path == ("a",) else value
    )


def test_an_error_shows_three_frames() -> None:
    """Innermost first, with the callers of who caught it."""
    text = error_text(raised())
    assert text.startswith("RuntimeError: boom (test_lines.py:")
    assert 2 == text.count(" < ")
    assert text.endswith(")")
    assert " in raised < test_lines.py:" in text


def test_an_error_without_a_message_is_its_type() -> None:
    """There is no colon with nothing behind it."""
    assert error_text(raised("")).startswith("RuntimeError (test_lines.py:")


def test_an_error_that_cannot_say_what_happened_is_unprintable() -> None:
    """Its type is known still."""
    assert "Broken: <unprintable>" == error_text(Broken())

    class Nameless(type):
        @property
        def __name__(cls) -> str:
            raise RuntimeError

    class Odd(Exception, metaclass=Nameless):
        pass

    assert "<unprintable>: x" == error_text(Odd("x"))


def test_an_error_stands_as_it_is_but_for_unprintables() -> None:
    """Spaces, quotes and backslashes stay, and it is cut before it is escaped."""
    assert r'RuntimeError: a "b" \ c\n\x1b\u2028\ud800é' == error_text(
        RuntimeError('a "b" \\ c\n\x1b\u2028\ud800é')
    )
    assert "RuntimeError: " + r"\n" * 255 + "…" == error_text(RuntimeError("\n" * 300))
    assert "as it is, by=x" == error_text("as it is, by=x")


def test_a_reason_that_begins_like_a_field_is_not_read_as_one() -> None:
    """Its first equals sign is escaped."""
    assert r"INF FAIL code\x3d5 a=b" == body(Line(("INF", "FAIL"), None, {}, "code=5 a=b"))


def test_secrets_are_masked_by_the_path_of_their_key() -> None:
    """In fields, subjects, lists, data and error texts."""
    line = Line(
        ("TOOL", "OK"),
        ("token", SECRET),
        {
            "password": SECRET,
            "secrets": [SECRET],
            "reason": f"token={SECRET}",
            "data": {"a": {"api_key": SECRET}},
        },
    )
    text = body(line)
    assert SECRET not in text
    assert 5 == text.count(MASK)
    assert f"RuntimeError: bad password={MASK}" == error_text(RuntimeError(f"bad password={SECRET}"))
    assert SECRET not in body(Line((), None, {"reason": "x" * 250 + f" token={SECRET}"}))


def test_a_text_that_its_masks_make_longer_is_cut() -> None:
    """The bound is on what is written."""
    text = body(Line((), None, {"a": "token=x " * 30}))
    assert text.startswith(f'a="token={MASK} token=')
    assert 256 == len(text.removeprefix('a="').removesuffix('"'))


def test_a_redact_function_is_asked_by_path() -> None:
    """The name of a field or subject, `data` and the keys in it, `error`."""
    paths: list[tuple[str, ...]] = []

    def spy(path: tuple[str, ...], value: Any) -> Any:
        paths.append(path)
        return value

    body(Line(("A",), ("tool", "x"), {"a": "1", "b": ["c"], "data": {"d": [1]}}, RuntimeError("e")), spy)
    assert [("tool",), ("a",), ("b", "0"), ("data", "d", "0"), ("error",)] == paths


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (NOON, "2026-01-31T12:00:00.250Z"),
        (1700000000.123, "2023-11-14T22:13:20.123Z"),
        (0.9996, "1970-01-01T00:00:01.000Z"),
        (-0.25, "1969-12-31T23:59:59.750Z"),
        (-62135596800, "0001-01-01T00:00:00.000Z"),
        (253402300799, "9999-12-31T23:59:59.000Z"),
    ],
)
def test_a_time_is_written(timestamp: float, text: str) -> None:
    """To the nearest millisecond, before the epoch too."""
    assert text == stamp(timestamp)


@pytest.mark.parametrize(
    "timestamp",
    [float("nan"), float("inf"), 1e300, 10**400, 253402300800, -62135596801, "x", None, [], Hostile],
    ids=map(str, range(10)),
)
def test_what_is_no_time_is_the_epoch(timestamp: Any) -> None:
    """A line is written even then."""
    assert "1970-01-01T00:00:00.000Z" == stamp(timestamp)


@pytest.mark.parametrize(
    ("cid", "text"),
    [
        (None, NO_CID),
        (CID, CID),
        ("run-1", "run-1"),
        (NO_CID, f'"{NO_CID}"'),
        ("", '""'),
        ("a b\n", '"a b\\n"'),
        ("x" * 300, "x" * 255 + "…"),
        (5, "5"),
        (b"a", "a"),
    ],
)
def test_an_id_is_one_word(cid: Any, text: str) -> None:
    """Whatever a caller takes for one."""
    assert f"2026-01-31T12:00:00.250Z {text} A" == format_line(NOON, cid, "A")


def test_escape_leaves_a_printable_text_alone() -> None:
    """It is the same object."""
    text = "a \\ é"
    assert escape(text) is text
    assert r"\n\t\u2028\xa0\ud800\U000e0001" == escape("\n\t\u2028\xa0\ud800\U000e0001")


@given(st.text(st.characters(codec=None)) | st.integers(4000, 4100).map(lambda size: "é\n" * size), HOSTILE)
def test_any_text_makes_one_printable_line_of_four_kibibytes(text: str, cid: str) -> None:
    """A user's own line too."""
    line = format_line(NOON, cid, text)
    assert line.isprintable()
    assert 4095 >= len(line.encode())


@pytest.mark.parametrize("text", ["x" * 4100, "é" * 2100, "\n" * 3000, "x" * 1_000_000])
def test_a_long_line_is_cut(text: str) -> None:
    """And says so."""
    line = format_line(NOON, CID, text)
    assert line.endswith("…")
    assert 4095 >= len(line.encode()) >= 4092


def test_a_line_that_just_fits_is_whole() -> None:
    """With its newline it is 4 KiB."""
    text = "x" * (4095 - len(format_line(NOON, CID, "")))
    assert format_line(NOON, CID, text).endswith("x")
    assert format_line(NOON, CID, text + "x").endswith("…")


@given(
    words=st.sampled_from(
        [
            ("INF", "START"),
            ("INF", "DENY"),
            ("TOOL", "OK"),
            ("GATE", "EDIT"),
            ("STEP", "DONE"),
            ("TURN", "START"),
        ]
    ),
    subject=VALUES,
    fields=st.dictionaries(NAMES, VALUES, max_size=4),
    pending=st.none() | st.lists(HOSTILE, max_size=3),
    data=JSON,
    cid=st.none() | VALUES,
    milliseconds=st.integers(0, 4_000_000_000_000),
)
def test_a_line_reads_back(
    words: tuple[str, ...],
    subject: str,
    fields: dict[str, str],
    pending: list[str] | None,
    data: Any,
    cid: str | None,
    milliseconds: int,
) -> None:
    """Time, id, words, fields, lists and data."""
    about = ("tool", subject) if words[0] in SUBJECTS else None
    line = Line(words, about, {**fields, "pending": pending, "data": data})
    text = format_line(milliseconds / 1000, cid, body(line, keep))
    assert text.isprintable()
    if len(text.encode()) >= 4092:
        return
    parsed = parse_line(text + "\n")
    assert milliseconds / 1000 == parsed.timestamp
    assert (cid if cid is None else cut(cid)) == parsed.cid
    assert (*words, *([cut(subject)] if about else [])) == parsed.words
    expected: dict[str, Any] = {name: cut(value) for name, value in fields.items()}
    if pending is not None:
        expected["pending"] = pending
    found = parsed.fields.pop("data", None)
    if expected.get("pending") and "…" in parsed.fields["pending"][-1:]:
        del expected["pending"], parsed.fields["pending"]
    assert expected == parsed.fields
    assert found == data or (isinstance(found, str) and found.endswith("…") and len(found) == 256)
    assert None is parsed.error


@given(
    words=st.sampled_from(
        [
            ("INF", "FAIL"),
            ("MODEL", "FAIL"),
            ("TOOL", "FAIL"),
            ("LOOP", "FAIL"),
            ("HOOK", "FAIL"),
            ("STEP", "FAIL"),
            ("STORE", "FAIL"),
        ]
    ),
    subject=VALUES,
    fields=st.dictionaries(NAMES, VALUES, max_size=3),
    error=ERRORS,
)
def test_a_failure_reads_back(
    words: tuple[str, ...], subject: str, fields: dict[str, str], error: Any
) -> None:
    """The error is all that follows, as the line shows it."""
    about = ("tool", subject) if words[0] in SUBJECTS else None
    text = format_line(NOON, CID, body(Line(words, about, fields, error), keep))
    assert text.isprintable()
    if len(text.encode()) >= 4092:
        return
    parsed = parse_line(text)
    assert (*words, *([cut(subject)] if about else [])) == parsed.words
    assert {name: cut(value) for name, value in fields.items()} == parsed.fields
    assert (body(Line((), None, {}, error), keep) or None) == parsed.error


@given(
    st.dictionaries(
        st.text(max_size=8), st.binary() | st.floats() | st.sets(HOSTILE, max_size=2) | JSON, max_size=3
    ),
    st.binary() | JSON,
    st.binary() | JSON,
)
def test_no_value_keeps_a_line_from_being_written(fields: dict[str, Any], subject: Any, error: Any) -> None:
    """Hostile names and objects included; and what is written is read without an error."""
    line = Line(
        ("TOOL", "FAIL"),
        ("tool", subject),
        {**fields, "x": Hostile(), "y": [Hostile()], "data": Hostile()},
        error,
    )
    text = format_line(NOON, CID, body(line))
    assert text.isprintable()
    assert ("TOOL", "FAIL") == parse_line(text).words[:2]


@given(st.text(st.characters(codec=None)))
def test_a_line_of_any_text_is_read(text: str) -> None:
    """Reading does not fail on what a user's own line says."""
    parse_line(format_line(NOON, CID, text))


@given(st.integers(0, 4095))
def test_a_line_cut_anywhere_is_read(size: int) -> None:
    """As far as it goes."""
    line = Line(("GATE", "EDIT"), ("tool", 'a "b"'), {"pending": ["a b", "c"], "by": "d e", "data": [1, "f"]})
    text = format_line(NOON, CID, body(line))[: 60 + size % 100]
    assert CID == parse_line(text).cid


@pytest.mark.parametrize(
    ("text", "words", "fields", "error"),
    [
        ("", (), {}, None),
        ("ORDER PLACED id=A1 total=9.5", ("ORDER", "PLACED"), {"id": "A1", "total": "9.5"}, None),
        ("ORDER  placed id=A1 at last", ("ORDER", "placed", "at", "last"), {"id": "A1"}, None),
        ('ORDER "a b" "c"d', ("ORDER", "a b", '"c"d'), {}, None),
        ("ORDER FAIL id=A1 too late", ("ORDER", "FAIL"), {"id": "A1"}, "too late"),
        ("ORDER data=x y", ("ORDER", "y"), {"data": "x"}, None),
        ("ORDER data=5,6 a=1", ("ORDER",), {"data": "5,6", "a": "1"}, None),
        ('TOOL OK x data={"a": "…', ("TOOL", "OK", "x"), {"data": '{"a": "…'}, None),
        ("TOOL OK x data=12…", ("TOOL", "OK", "x"), {"data": "12…"}, None),
        ("TOOL OK x data=" + "[" * 100_000 + "…", ("TOOL", "OK", "x"), {"data": "[" * 100_000 + "…"}, None),
        ('TOOL FAIL x data={"a": 1} E: b', ("TOOL", "FAIL", "x"), {"data": {"a": 1}}, "E: b"),
        ("GATE ERROR x by=y E: b c=d", ("GATE", "ERROR", "x"), {"by": "y"}, "E: b c=d"),
        ("TOOLS RECV []", ("TOOLS", "RECV"), {}, None),
        ("TOOLS RECV [a, …", ("TOOLS", "RECV", "[a,", "…"), {}, None),
        ('TOOLS RECV [a, "b…', ("TOOLS", "RECV", "[a,", "b…"), {}, None),
        ("TOOLS RECV [a, ]", ("TOOLS", "RECV", "[a,", "]"), {}, None),
        (
            "A x=[b] y=[b, c] pending=[b] z=[b]c",
            ("A",),
            {"x": "[b]", "y": ["b", "c"], "pending": ["b"], "z": "[b]c"},
            None,
        ),
        ('A reason="cut of…', ("A",), {"reason": "cut of…"}, None),
        ("a=1 b", ("b",), {"a": "1"}, None),
    ],
    ids=map(str, range(19)),
)
def test_a_text_is_read(text: str, words: tuple[str, ...], fields: dict[str, Any], error: str | None) -> None:
    """The catalog's lines by the grammar, others as well as it goes."""
    parsed = parse_line(f"2026-01-31T12:00:00.250Z {CID} {text}")
    assert (words, fields, error) == parsed[2:]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with a time"),
        ("x" * 1000, "does not begin with a time"),
        ("2026-01-31 12:00:00 -------- INF START", "does not begin with a time"),
        ("2026-13-31T12:00:00.250Z -------- INF START", "does not begin with a time"),
        ("2026-01-31T12:00:00.250Z", "no correlation id"),
        ("2026-01-31T12:00:00.250Z  INF START", "no correlation id"),
    ],
)
def test_a_text_that_is_no_line_is_refused(text: str, reason: str) -> None:
    """The error shows the text and what it lacks."""
    with pytest.raises(ValueError, match=reason) as info:
        parse_line(text)
    assert str(info.value).startswith(repr(text[:79])[:-1])
    assert 200 > len(str(info.value))


def test_line_ends_of_any_system_are_read() -> None:
    """A file may have been on another one."""
    text = format_line(NOON, None, "INF START")
    assert parse_line(text) == parse_line(text + "\r\n") == parse_line(text + "\n")


def test_data_of_any_size_is_json_up_to_its_cut() -> None:
    """What is not cut can be parsed, brackets to the last."""
    value: Any = []
    for _ in range(120):
        value = [value]
    assert value == json.loads(body(Line((), None, {"data": value})).removeprefix("data="))
    wide = list(range(62))
    assert wide == json.loads(body(Line((), None, {"data": wide})).removeprefix("data="))
    assert 261 == len(body(Line((), None, {"data": [string.ascii_letters] * 100})))
