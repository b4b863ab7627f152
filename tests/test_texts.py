"""
The texts in a value, at any depth: which are seen, what is put back, and what stays the object it is.
"""

from __future__ import annotations

import dataclasses
import json
from collections import namedtuple
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace
from typing import Any

import attrs
import pytest
import strategies
from hypothesis import given, settings

from eventbus import _texts
from eventbus._readonly import freeze
from eventbus._texts import Clean, Texts, TooLargeError
from eventbus.values import Agent, Message, ToolResult


def louder(value: Any, path: str = "it") -> Any:
    """Return a value with each `x` in its texts in capitals."""
    return Texts(lambda text, _: text.replace("x", "X") if "x" in text else text).rewrite(value, path)


def seen(value: Any) -> list[tuple[str, str]]:
    """Return the texts in a value, each with its path."""
    found: list[tuple[str, str]] = []

    def note(text: str, path: str) -> str:
        found.append((path, text))
        return text

    Texts(note).rewrite(value, "it")
    return found


@dataclasses.dataclass
class Order:
    """A dataclass."""

    note: str
    total: float = 0.0


@dataclasses.dataclass
class Ordered:
    """A dataclass that does not keep all that its constructor takes, and keeps what it does not take."""

    note: str
    count: dataclasses.InitVar[int]
    line: str = dataclasses.field(init=False)

    def __post_init__(self, count):
        self.line = f"note: {self.note}"


@attrs.frozen
class Person:
    """An attrs class with a private field, and one that its constructor does not take."""

    _name: str
    age: int = attrs.field(default=1, init=False)


class Model:
    """What pydantic's models have in common."""

    model_fields = {"note": None}

    def __init__(self, note, **extra):
        self.note = note
        self.model_extra = extra or None
        self.__dict__.update(extra)

    def model_copy(self, update):
        """Return a copy with other values."""
        return type(self)(**{"note": self.note, **(self.model_extra or {}), **update})


Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ax", "aX"),
        ({"k": "x"}, {"k": "X"}),
        ({"x": 1}, {"X": 1}),
        ({"x": 1, "X": 2}, {"X": 1, "X~": 2}),
        ({"X": 2, "x": 1}, {"X": 2, "X~": 1}),
        ({1: {"deep": ["a", ("x",)]}}, {1: {"deep": ["a", ("X",)]}}),
        (freeze({"a": [{"b": "x"}]}), {"a": [{"b": "X"}]}),
        (MappingProxyType({"a": "x"}), {"a": "X"}),
        (["a", "x"], ["a", "X"]),
        (("x",), ("X",)),
        ({"x"}, {"X"}),
        (frozenset({"x"}), frozenset({"X"})),
        (Pair("a", "x"), Pair("a", "X")),
        (b"x", b"X"),
        (bytearray(b"\xffx"), bytearray(b"\xffX")),
        (Agent("x"), "X"),
        (Message("x", subject="x"), Message("X", subject="X")),
        (ToolResult({"a": "x"}), ToolResult({"a": "X"})),
        (Order("x", 2.0), Order("X", 2.0)),
        (Person("x"), Person("X")),
        (ValueError("x"), "X"),
        ('{"a": "x"}', '{"a": "X"}'),
        ({("x",): 1}, {("X",): 1}),
        ({b"x": 1}, {b"X": 1}),
        ('"x\\n"', '"X\\n"'),
        ('\t{"a": "x"}', '{"a": "X"}'),
        ('\ufeff[1, "x"]', '[1, "X"]'),
        (" " * 100 + r'["\u0078"]', '["X"]'),
        (r'["x", "\ud800", "\u00e9"]', r'["X", "\ud800", "\u00e9"]'),
        ('["x", "\u00e9"]', '["X", "\u00e9"]'),
        (' [1, "x", null]', '[1, "X", null]'),
        (r'{"a": "\u0078"}', '{"a": "X"}'),
        ('{"a": "{\\"b\\": \\"x\\"}"}', '{"a": "{\\"b\\": \\"X\\"}"}'),
        ('{"a": "x", "a": "y"}', '{"a": "X", "a": "y"}'),
        ('{"a": x', '{"a": X'),
    ],
)
def test_a_text_is_replaced(value, expected):
    """Wherever a text stands, it is replaced, and the rest stays as it was, of the same kind."""
    new = louder(value)
    assert expected == new
    if not isinstance(value, MappingProxyType | ValueError | Agent) and value != freeze(value):
        assert type(value) is type(new)


class Plain:
    """An object that says nothing of itself."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


@pytest.mark.parametrize("kind", [Plain, SimpleNamespace])
def test_an_object_that_says_nothing_of_itself(kind):
    """Its attributes are looked at; a copy of it has what is replaced, and the object stays as it was."""
    old = kind(data={"a": ["x"]}, error=None, total=5)
    new = louder(old)
    assert (kind, {"a": ["X"]}, 5) == (type(new), new.data, new.total)
    assert {"a": ["x"]} == old.data
    assert new is louder(new)


def test_objects_within_such_an_object_are_left():
    """Where they lead to may be the whole program, in circles."""
    old = Plain(text="x", parent=Plain(text="x"))
    old.children = [old]
    new = louder(old)
    assert ("X", "x", old) == (new.text, new.parent.text, new.children[0])


class Slotted:
    """An object that says nothing of itself, and keeps what it has in slots."""

    __slots__ = ("error", "result")

    def __init__(self, result):
        self.result = result


def test_slots_are_attributes():
    """They are looked at like others, and one that is not set is none."""
    old = Slotted({"a": "x"})
    new = louder(old)
    assert ({"a": "X"}, {"a": "x"}) == (new.result, old.result)
    assert not hasattr(new, "error")


def test_a_field_that_no_constructor_takes():
    """What was set afterwards is a field like any other, and kept if nothing is replaced in it."""
    person, order = Person("x"), Ordered("x", 3)
    object.__setattr__(person, "age", "thirty-x")
    assert ("X", "thirty-X") == (louder(person)._name, louder(person).age)
    object.__setattr__(person, "age", 31)
    assert ("X", 31) == (louder(person)._name, louder(person).age)
    assert ("X", "note: X") == (louder(order).note, louder(order).line)


def test_a_pydantic_object_is_copied():
    """A model is copied by its own method."""
    new = louder(Model("x"))
    assert ("X", Model) == (new.note, type(new))


def test_what_a_pydantic_object_has_beside_its_fields():
    """A model that allows more keeps it beside its fields, as those of providers' clients do."""
    new = louder(Model("a", also="x"))
    assert ("a", "X") == (new.note, new.also)


def test_a_view_of_bytes():
    """It is read like bytes, and replaced by another view."""
    assert b"X" == louder(memoryview(b"x"))


@pytest.mark.parametrize(
    "value",
    [
        "a",
        {"a": [1, "b", {"c": None}]},
        [1, 2.5, True, None, 10**12, -5],
        ("a",),
        {"a"},
        Pair("a", "b"),
        b"a",
        Agent("a"),
        Message("a"),
        Order("a"),
        Person("a"),
        Model("a"),
        ValueError("a"),
        Decimal("1.5"),
        '{"a": "b"}',
        str,
        10**200,
    ],
    ids=repr,
)
def test_what_is_not_replaced_stays_the_same_object(value):
    """A value without a text to replace is given back itself."""
    assert value is louder(value)


@given(strategies.json_values())
@settings(max_examples=50)
def test_any_value_without_the_text_stays_itself(value):
    """Nothing is rebuilt that need not be."""
    assert value is Texts(lambda text, _: text).rewrite(value, "it")


def test_the_path_names_the_place():
    """Keys, indexes and fields lead to a text."""
    value = {"a": [{"b": "1"}], "m": Message("2"), "p": Pair("3", "4"), 5: "6"}
    paths = dict(seen(value))
    assert "it.a[0].b" in paths
    assert "it.m.text" in paths
    assert "it.p.right" in paths
    assert "it.5" in paths


def test_the_path_shows_what_a_key_became():
    """A key that is replaced is not in the path either."""
    found = []

    def edit(text, path):
        found.append(path)
        return "masked" if text == "mia" else text

    Texts(edit).rewrite({"mia": "1", ("a",): "2"}, "it")
    assert ["it", "it.masked", "it[0]", "it.tuple"] == found


def test_a_long_path_is_cut():
    """Neither a long key nor a deep value makes a path longer than 200 characters."""
    value: Any = "x"
    for _ in range(30):
        value = {"k" * 60: value}
    assert max(len(path) for path, _ in seen(value)) == 200
    assert ("it." + "k" * 40) in dict(seen(value))


def test_a_long_number_is_a_text():
    """A number of at least ten digits is looked at, and replaced by a text if it must be."""
    assert [("it", "4111111111111111")] == seen(4111111111111111)
    assert ["n"] == Texts(lambda text, _: "n").rewrite([4111111111111111], "it")


def test_what_an_object_says_of_itself_is_a_text():
    """An object of another kind is judged by what `str` makes of it."""
    assert [("it", "1.5")] == seen(Decimal("1.5"))


def test_characters_are_counted():
    """The count is that of all texts, keys included; a JSON text counts as it is written."""
    texts = Texts(lambda text, _: text)
    texts.rewrite({"ab": ["c", '{"d": "e"}']}, "it")
    assert 2 + 1 + 10 == texts.characters


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MAX_CHARACTERS", ["abc", "def"]), ("MAX_VALUES", [[], [], [], [], []]), ("MAX_DEPTH", [[[[[[[]]]]]]])],
)
def test_too_much_is_an_error(monkeypatch, limit, value):
    """Beyond a limit nothing is passed over: it is a TooLargeError that names the place."""
    monkeypatch.setattr(_texts, limit, 5)
    with pytest.raises(TooLargeError, match=r"^it(\[\d\])* holds more"):
        louder(value)


def test_a_cycle_is_too_deep():
    """What holds itself ends with the depth."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(TooLargeError):
        louder(value)


class TestClean:
    """Texts that come again."""

    def test_a_clean_text_is_looked_at_once(self):
        """A text in which nothing was found is not looked at again, alone or as JSON."""
        asked = []

        def edit(text, path):
            asked.append(text)
            return text

        clean = Clean()
        for _ in range(2):
            texts = Texts(edit, clean)
            texts.rewrite(["a", '{"b": "c"}'], "it")
            assert 1 + 10 == texts.characters
        assert ["a", "b", "c"] == asked

    def test_a_text_with_a_find_is_looked_at_again(self):
        """Also where what was found is let pass."""
        clean = Clean()
        for _ in range(2):
            texts = Texts(lambda text, path: text, clean)

            def find(text, path, texts=texts):
                texts.finds += 1
                return text

            texts.edit = find
            texts.rewrite(["a", '["b"]'], "it")
            assert 2 == texts.finds

    def test_what_is_kept_is_bounded(self, monkeypatch):
        """The latest are kept, those used again with them, and never more than twice the limit."""
        monkeypatch.setattr(_texts, "_MOST_CLEAN", 10 * (64 + 4))
        clean = Clean()
        clean.add("used")
        for number in range(1000):
            clean.add(f"{number:04}")
            assert "used" in clean
            assert len(clean._latest) + len(clean._before) <= 22
        assert "0999" in clean
        assert "0001" not in clean

    def test_a_long_text_is_not_kept(self):
        """One of more than 64 Ki characters is looked at each time."""
        clean = Clean()
        clean.add("a" * 65_537)
        assert "a" * 65_537 not in clean


def test_json_that_is_too_long_is_a_text(monkeypatch):
    """A JSON text beyond the limit is not parsed, and still looked at."""
    monkeypatch.setattr(_texts, "_JSON_CHARACTERS", 5)
    assert [("it", '{"a": "x"}')] == seen('{"a": "x"}')


def test_json_is_nested_four_deep():
    """JSON in JSON is parsed to a depth, and looked at as it is written below."""
    text = '"x"'
    for _ in range(6):
        text = json.dumps([text])
    assert any(inner.startswith("[") for _, inner in seen(text))
