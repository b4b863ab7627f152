"""Any value becomes what JSON can hold, bounded and masked, and nothing else happens."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import itertools
import json
import pathlib
import socket
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventbus._plain import Limits, Plain, plain, type_name
from eventbus._redact import MASK, default_redact

SECRET = "hunter2canary"
HERE = __name__

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None, exclude_characters="=:%\\"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc_é ", max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


class Hostile:
    """Raises whatever is asked of it."""

    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        return 12345

    def __bool__(self) -> bool:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    @property
    def __class__(self) -> Any:
        raise RuntimeError


class HostileDict(dict[Any, Any]):
    """A dict whose own methods lie."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError

    def items(self) -> Any:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


class HostileMeta(type):
    """A class whose class raises."""

    def __hash__(cls) -> int:
        raise RuntimeError


class HostileKind(metaclass=HostileMeta):
    """An instance of it is no key of any cache."""


class SelfRepr:
    """Repeats itself without end."""

    def __repr__(self) -> str:
        return f"<{self!r}>"


class Broken(Exception):
    """Cannot say what happened."""

    def __str__(self) -> str:
        raise self


def cycle() -> list[Any]:
    """Give a list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


# Made in the test itself: hypothesis asks what it draws for its class and text.
MAKERS: dict[str, Callable[[], Any]] = {
    "hostile": Hostile,
    "hostile class": lambda: Hostile,
    "self repr": SelfRepr,
    "hostile kind": HostileKind,
    "hostile dict": lambda: HostileDict(a=1),
    "broken": Broken,
    "lock": threading.Lock,
    "class": lambda: int,
    "function": lambda: print,
    "big": lambda: 2**70,
    "huge": lambda: 10**5000,
    "cycle": cycle,
    "surrogate": lambda: "\ud800\0",
    "iterator": lambda: iter([1]),
    "object": object,
}


class Make(NamedTuple):
    """Stands for a hostile value."""

    name: str


def made(value: Any) -> Any:
    """Put the hostile values in their places."""
    if isinstance(value, Make):
        return MAKERS[value.name]()
    if isinstance(value, dict):
        return {key: made(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(made, value))
    return value


LEAVES = st.builds(Make, st.sampled_from(sorted(MAKERS)))
ANYTHING = st.recursive(
    JSON | LEAVES | st.binary(max_size=20) | st.floats() | st.complex_numbers() | st.decimals() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.none() | st.binary(), inner, max_size=4)
        | st.frozensets(st.integers() | st.text(max_size=3), max_size=4)
    ),
    max_leaves=15,
)


def keep(path: tuple[str, ...], value: Any) -> Any:
    """Redact nothing."""
    return value


@given(JSON)
def test_what_json_holds_is_copied_as_it_is(value: Any) -> None:
    """Nothing is lost, and the copy is no part of the original."""
    assert Plain(value, False) == plain(value, redact=keep)
    assert Plain(value, False) == plain(value)


def test_the_copy_is_fresh() -> None:
    """Who changes the copy does not change the original."""
    value = {"a": [1]}
    plain(value).value["a"].append(2)
    assert {"a": [1]} == value


@given(ANYTHING)
def test_any_value_at_all_becomes_json(value: Any) -> None:
    """No value raises, and what comes out can be written and read."""
    copy = plain(made(value)).value
    assert copy == json.loads(json.dumps(copy, allow_nan=False))


@given(ANYTHING, st.builds(Limits, *[st.integers(-1, 30)] * 4))
def test_any_value_stays_within_any_limits(value: Any, limits: Limits) -> None:
    """However little room there is, there is an answer."""
    assert len(json.dumps(plain(made(value), limits=limits).value)) < 3000


NAMED = st.sampled_from(["name", "total", "api_key", "a=b", "x" * 200, "Bearer abc"])
LOADED = st.recursive(
    JSON | st.sampled_from(["password=abc", "Basic a1b2c3d4", '{"token": "x"}', "https://u:p@h", "x" * 300]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMED, inner, max_size=4),
)


@given(
    LOADED,
    st.builds(Limits, *[st.integers(-1, 30)] * 4) | st.just(Limits()),
    st.sampled_from([(), ("a",), ("secrets",)]),
)
@example(["000000000000", {"_": None}, []], Limits(2, 5, 12, 13), ())
@example([[1], None, 2], Limits(2, 4, 12, 13), ())
def test_the_default_redaction_answers_as_any_function_does(
    value: Any, limits: Limits, path: tuple[str, ...]
) -> None:
    """What nearly all values hold is copied without asking for each leaf, and no answer differs for it."""

    def asked(keys: tuple[str, ...], leaf: Any) -> Any:
        return default_redact(keys, leaf)

    assert plain(value, redact=asked, limits=limits, path=path) == plain(value, limits=limits, path=path)


EXACT: list[tuple[Any, Any]] = [
    (2**70, 2**70),
    ("\ud800\0", "\ud800\0"),
    ((1, 2), [1, 2]),
    (datetime.datetime(2026, 1, 31, 12, 0, tzinfo=datetime.UTC), "2026-01-31T12:00:00+00:00"),
    (datetime.date(2026, 1, 31), "2026-01-31"),
    (datetime.time(12, 30), "12:30:00"),
    (datetime.timedelta(hours=1), "1:00:00"),
    (decimal.Decimal("1.10"), "1.10"),
    (fractions.Fraction(1, 3), "1/3"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (pathlib.PurePosixPath("/a/b"), "/a/b"),
    (ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
    (enum.Enum("Color", {"RED": [1]}).RED, [1]),  # type: ignore[attr-defined]
    (enum.IntEnum("Size", {"BIG": 3}).BIG, 3),  # type: ignore[attr-defined]
    (enum.StrEnum("Word", {"A": "a"}).A, "a"),  # type: ignore[attr-defined]
    (collections.OrderedDict(a=1), {"a": 1}),
    (collections.deque([1, 2]), [1, 2]),
    (types.MappingProxyType({"a": 1}), {"a": 1}),
    (types.SimpleNamespace(a=1), {"a": 1}),
    (collections.UserString("abc"), "abc"),
    (range(3), [0, 1, 2]),
    (HostileDict(a=1), {"a": 1}),
    (type("Float", (float,), {})(1.5), 1.5),
    (type("Int", (int,), {"__int__": lambda self: 1 / 0})(5), 5),
    (type("Text", (str,), {"__str__": lambda self: 1 / 0})("a"), "a"),
    (type("List", (list,), {"__iter__": lambda self: 1 / 0})([1]), [1]),
]


# Numbered: pytest would make the names of the cases from the values.
@pytest.mark.parametrize(("value", "copy"), EXACT, ids=map(str, range(len(EXACT))))
def test_a_value_whose_copy_tells_everything_is_not_lossy(value: object, copy: object) -> None:
    """Texts of exact values, and containers under other names."""
    assert Plain(copy, False) == plain(value)
    assert Plain(copy, False) == plain(value, redact=keep)


LOSSY: list[tuple[Any, Any]] = [
    (float("nan"), "NaN"),
    (float("inf"), "Infinity"),
    (float("-inf"), "-Infinity"),
    (10**5000, "<int of 16610 bits>"),
    (b"abc", "abc"),
    (bytearray(b"\xff"), "\\xff"),
    (memoryview(b"a"), "a"),
    ({2, 1}, [1, 2]),
    (frozenset("a"), ["a"]),
    ({"a": 1}.keys(), ["a"]),
    (1j, "1j"),
    (int, "<class builtins.int>"),
    (keep, f"<function {HERE}.keep>"),
    (threading.Lock(), "<_thread.lock>"),
    (object(), "<builtins.object>"),
    (iter([1]), "<builtins.list_iterator>"),
    (Hostile(), f"<{HERE}.Hostile>"),
    (SelfRepr(), f"<{HERE}.SelfRepr>"),
    (HostileKind(), f"<{HERE}.HostileKind>"),
    (type("Bare", (), {"__module__": HERE})(), f"<{HERE}.Bare>"),
    (type("Shown", (), {"__repr__": lambda self: "Shown(1)", "__module__": HERE})(), "Shown(1)"),
    (type("Nowhere", (), {"__module__": 5})(), "<object>"),
]


@pytest.mark.parametrize(("value", "copy"), LOSSY, ids=map(str, range(len(LOSSY))))
def test_a_value_that_cannot_be_told_from_its_copy_is_lossy(value: object, copy: object) -> None:
    """Also where it is deep inside."""
    assert Plain({"a": [copy]}, True) == plain({"a": [value]})
    assert Plain(copy, True) == plain(value, path=("x",), redact=keep)


def test_a_socket_is_opaque() -> None:
    """Its repr would ask the operating system."""
    with socket.socket() as value:
        assert "<socket.socket>" == plain(value).value


def test_an_exception_tells_its_type_text_and_frames() -> None:
    """What a reader asks of it."""
    assert {"type": "builtins.ValueError", "text": "boom", "frames": []} == plain(ValueError("boom")).value
    assert {"type": f"{HERE}.Broken", "text": "<unprintable>", "frames": []} == plain(Broken()).value


def test_fields_of_a_class_become_a_dict() -> None:
    """Named tuples, dataclasses, attrs and pydantic classes, an attribute that raises marked."""

    class Named(NamedTuple):
        a: int

    @dataclasses.dataclass
    class Data:
        a: int

    @attrs.define
    class Defined:
        a: int

    class Model:
        __pydantic_fields__ = {"a": None, "b": None}
        a = 1

        @property
        def b(self) -> int:
            raise RuntimeError

    assert [{"a": 1}] * 3 == plain([Named(1), Data(1), Defined(1)]).value
    assert Plain({"a": 1, "b": "<unreadable>"}, True) == plain(Model())


def test_keys_become_texts() -> None:
    """What JSON has no key for is said in its text, and no key is lost to another."""
    value = {
        1: "a",
        "1": "b",
        None: "c",
        (1, "x"): "d",
        b"y": "e",
        Hostile(): "f",
        type("T", (str,), {})("t"): "g",
    }
    expected = {
        "1": "a",
        "1~1": "b",
        "null": "c",
        '[1, "x"]': "d",
        "y": "e",
        f"<{HERE}.Hostile>": "f",
        "t": "g",
    }
    assert Plain(expected, True) == plain(value)


def test_colliding_keys_are_told_apart() -> None:
    """Also where the other name is taken."""
    assert {"1": 1, "1~2": 2, "1~2~2": 3} == plain({1: 1, "1~2": 2, "1": 3}).value


def test_a_long_key_is_cut() -> None:
    """A key is a text."""
    assert Plain({"kk…": 1}, True) == plain({"k" * 200: 1}, limits=Limits(text=3))


def test_a_cycle_is_marked_where_it_closes() -> None:
    """The same list twice side by side is none."""
    value = cycle()
    assert Plain(["<cycle>"], True) == plain(value)
    same: list[int] = [1]
    assert Plain([[1], [1]], False) == plain([same, same])


def test_what_lies_too_deep_is_cut() -> None:
    """Five thousand levels are no stack overflow."""
    value: Any = []
    for _ in range(5000):
        value = [value]
    assert Plain([["…"]], True) == plain(value, limits=Limits(depth=2))
    assert 64 == json.dumps(plain(value).value).count("[")


def test_what_is_too_much_is_cut() -> None:
    """Lists and dicts say that there was more."""
    assert Plain([0, 1, "…"], True) == plain(list(range(5)), limits=Limits(nodes=2))
    assert Plain({"a": 1, "…": "…"}, True) == plain({"a": 1, "b": 2}, limits=Limits(nodes=1))
    assert Plain({"a": "…"}, True) == plain({"a": []}, limits=Limits(nodes=1))
    assert Plain([0, "…"], True) == plain(collections.deque(range(5)), limits=Limits(nodes=1))
    assert "…" == plain({1}, limits=Limits(depth=0)).value


def test_all_texts_together_are_bounded() -> None:
    """A thousand texts of a thousand characters are a million."""
    copy = plain(["x" * 10] * 5, limits=Limits(total=25)).value
    assert ["x" * 10, "x" * 10, "xxxx…", "…"] == copy


def test_keys_count_among_all_texts() -> None:
    """A long key is cut to what those before it have left."""
    value = {"a" * 100: 1, "k" * 200: 1, "z": 1}
    assert ["a" * 100, "k" * 49 + "…", "…"] == list(plain(value, limits=Limits(total=150)).value)


def test_a_mapping_that_raises_is_kept_as_far_as_it_could_be_read() -> None:
    """Also one without end, or whose values cannot be had."""

    class Endless(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            if self.last and key == "2":
                raise RuntimeError
            return int(key)

        def __iter__(self) -> Iterator[str]:
            return map(str, itertools.count())

        def __len__(self) -> int:
            raise RuntimeError

        def __init__(self, last: bool) -> None:
            self.last = last

    assert Plain({"0": 0, "1": 1, "…": "…"}, True) == plain(Endless(True))
    assert Plain({"0": 0, "1": 1, "2": 2, "…": "…"}, True) == plain(Endless(False), limits=Limits(nodes=3))


def test_a_sequence_that_raises_is_kept_as_far_as_it_could_be_read() -> None:
    """The same for lists."""

    class Two(collections.UserList[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise RuntimeError

    assert Plain([1, "…"], True) == plain(Two())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_goes_through(error: type[BaseException]) -> None:
    """Who stops the program is not stopped."""

    class Interrupted:
        def __repr__(self) -> str:
            raise error

    with pytest.raises(error):
        plain({"a": [Interrupted()]})


@pytest.mark.parametrize("error", [RecursionError, MemoryError, ValueError])
def test_an_exception_does_not(error: type[Exception]) -> None:
    """Whatever a repr raises, its type is known."""

    class Raising:
        def __repr__(self) -> str:
            raise error

    assert plain(Raising()).value.startswith(f"<{HERE}.test_an_exception_does_not.")


def test_at_the_end_of_the_stack_there_is_still_an_answer() -> None:
    """Called where hardly a frame is left, it does not raise."""

    def descend() -> list[Any]:
        try:
            found = descend()
        except RecursionError:
            found = []
        if len(found) < 40:
            found.append(plain({"a": [{"b": "c"}]}).value)
        return found

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(descend()))
    thread.start()
    thread.join()
    assert 40 == len(found)
    assert {"a": [{"b": "c"}]} == found[-1]
    assert "…" in found


def test_a_text_is_masked_by_every_key_above_it() -> None:
    """In dicts, lists, fields and bytes; numbers stay."""

    class Login(NamedTuple):
        password: str
        attempts: int

    value = {
        "login": Login(SECRET, 3),
        "credentials": [{"a": SECRET, "b": b"x", "n": 1, "o": object()}],
        "t": b"token=x",
    }
    assert {
        "login": {"password": MASK, "attempts": 3},
        "credentials": [{"a": MASK, "b": MASK, "n": 1, "o": MASK}],
        "t": f"token={MASK}",
    } == plain(value).value
    assert MASK == plain("x", path=("api_key", "0")).value
    assert Plain({"password": MASK}, False) == plain({"password": "x" * 10_000}, limits=Limits(text=20))


def test_a_repr_a_key_and_a_path_are_masked() -> None:
    """A secret in free text, wherever the text comes from."""

    class Shown:
        def __repr__(self) -> str:
            return f"Shown(password='{SECRET}')"

    value = {
        f"https://h/?token={SECRET}": Shown(),
        "p": pathlib.PurePosixPath(f"/a?secret={SECRET}"),
        "e": ValueError(f"token={SECRET}"),
    }
    assert SECRET not in json.dumps(plain(value).value)


@given(st.integers(0, 60), st.integers(1, 60))
def test_a_secret_that_a_cut_divides_is_masked_before(before: int, limit: int) -> None:
    """Its first half does not come out."""
    text = "x" * before + f" password={SECRET * 4}"
    assert "hunter" not in plain(text, limits=Limits(text=limit)).value


@given(st.integers(4000, 4300), st.sampled_from(["password=", "postgres://user:", "Basic a1", '{"token": "']))
def test_a_secret_that_the_margin_divides_is_masked_or_dropped(before: int, introduction: str) -> None:
    """Nor where masks make a long text short."""
    text = f"token={'y' * before} {introduction}{SECRET}{'z' * 20}@host more" + "x" * 5000
    assert "hunter" not in plain(text, limits=Limits(text=100)).value


def test_a_long_text_is_cut() -> None:
    """With the mark that says so; bytes too."""
    assert Plain("xxxx…", True) == plain("x" * 6, limits=Limits(text=5))
    assert Plain("xxxxx", False) == plain("x" * 5, limits=Limits(text=5))
    assert Plain("xxxx…", True) == plain("x" * 1_000_000, limits=Limits(text=5))
    assert "xxxx…" == plain(b"x" * 1_000_000, limits=Limits(text=5)).value
    assert "xxxx…" == plain("x" * 1_000_000, redact=keep, limits=Limits(text=5)).value


def test_a_redact_function_sees_every_leaf_and_its_path() -> None:
    """Texts, numbers, bytes and what is told in a text; positions are digits."""
    seen: list[tuple[tuple[str, ...], Any]] = []

    def spy(path: tuple[str, ...], value: Any) -> Any:
        seen.append((path, value))
        return value

    value = {"a": [1, None, True, 1.5, "x", b"y"], 5: decimal.Decimal(1), "o": object()}
    plain(value, redact=spy, path=("data",))
    assert [
        (("data", "a", "0"), 1),
        (("data", "a", "1"), None),
        (("data", "a", "2"), True),
        (("data", "a", "3"), 1.5),
        (("data", "a", "4"), "x"),
        (("data", "a", "5"), b"y"),
        (("data", "a", "5"), "y"),
        (("data", "5"), "1"),
        (("data", "o"), "<builtins.object>"),
    ] == seen


@pytest.mark.parametrize(
    ("answer", "copy"),
    [
        ("shown", "shown"),
        (None, None),
        (5, 5),
        (float("nan"), "NaN"),
        ({"a": [b"x", (1,)]}, {"a": ["x", [1]]}),
        (b"bytes", "bytes"),
        (type("Text", (str,), {})("t"), "t"),
        ("x" * 30, "x" * 19 + "…"),
    ],
)
@pytest.mark.parametrize("value", ["text", 1, True, None])
def test_what_a_redact_function_answers_is_taken(answer: object, copy: object, value: object) -> None:
    """Whatever it is, it becomes JSON too, and it is not asked again."""
    assert {"a": copy} == plain({"a": value}, redact=lambda path, leaf: answer, limits=Limits(text=20)).value


def test_what_a_redact_function_makes_of_bytes_is_taken() -> None:
    """A text as it is, other things as JSON."""
    assert "shown" == plain(b"x", redact=lambda path, value: "shown").value
    assert 5 == plain(b"x", redact=lambda path, value: 5).value


def test_a_short_answer_about_a_long_text_stands() -> None:
    """It is the function's own, and no secret was cut in it."""
    assert "hash" == plain("x" * 100_000, redact=lambda path, value: "hash", limits=Limits(text=10)).value


def test_a_redact_function_that_raises_masks() -> None:
    """It fails closed, leaf by leaf."""

    def broken(path: tuple[str, ...], value: Any) -> Any:
        if value == 2:
            raise RuntimeError
        return value

    assert [1, MASK] == plain([1, 2], redact=broken).value
    assert MASK == plain("a", redact=lambda path, value: 1 / 0).value


def test_a_class_without_a_name_is_an_object() -> None:
    """Naming cannot fail either."""
    assert "object" == type_name(types.SimpleNamespace())
    assert "builtins.int" == type_name(int)


def test_nothing_in_the_value_is_changed_or_copied_by_its_own_means() -> None:
    """Neither copy nor pickle is asked."""

    class Fixed:
        def __copy__(self) -> Any:
            raise AssertionError

        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError

    fixed = Fixed()
    value = {"lock": threading.Lock(), "fixed": fixed}
    before = dict(value)
    plain(value)
    assert before == value
    assert 3 >= sys.getrefcount(fixed) - 1
