"""
The texts in a value, at any depth: handed to a function one by one, and put back as it returns them.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, cast

import attrs

from ._errors import EventbusError
from ._verdict import text_of
from .values import ToolResult

Edit: TypeAlias = Callable[[str, str], str]
"""Takes a text and the path to it, and returns what stands in its place: the text itself, or another."""

MAX_CHARACTERS: Final = 4_000_000
MAX_VALUES: Final = 200_000
MAX_DEPTH: Final = 100

_JSON_CHARACTERS: Final = 262_144
_JSON_NESTING: Final = 4
_JSON_STARTS: Final = '{["'
_BYTE_ORDER_MARK: Final = "\ufeff"
_BEFORE_JSON: Final = f" \t\r\n{_BYTE_ORDER_MARK}"
_LONGEST_KEY: Final = 40
_LONGEST_PATH: Final = 200
_LONGEST_CLEAN: Final = 65_536
_MOST_CLEAN: Final = 1_000_000
_OVERHEAD: Final = 64
_SMALLEST_INT: Final = 10**9
_LARGEST_INT: Final = 10**100
# As in `_readonly`: they tell type checkers what a bare `dict.items` leaves unknown.
_DICT: type[dict[Any, Any]] = dict
_LIST: type[list[Any]] = list
_MISSING: Final = object()
_OF_FROZEN: Final = ToolResult.__setattr__
"""What the classes of `attrs.frozen` have in common."""
_PLAIN: Final = frozenset({bool, float, complex, type(None), type(Ellipsis)})


class TooLargeError(EventbusError, ValueError):
    """
    A value holds more than can be looked through.
    """


class Clean:
    """
    Texts in which nothing was found, of the latest 1 to 2 million characters; for texts that come again.

    Every method is safe to call from any thread.
    """

    __slots__ = ("_before", "_latest", "_size")

    def __init__(self) -> None:
        self._latest: set[str] = set()
        self._before: set[str] = set()
        self._size = 0

    def add(self, text: str) -> None:
        """
        Remember a text; one that is long is not kept.
        """
        if len(text) > _LONGEST_CLEAN:
            return
        self._latest.add(text)
        self._size += len(text) + _OVERHEAD
        if self._size > _MOST_CLEAN:
            self._before, self._latest, self._size = self._latest, set(), 0

    def __contains__(self, text: str) -> bool:
        if text in self._latest:
            return True
        if text in self._before:
            self.add(text)
            return True
        return False


class Texts:
    """
    Looks through values, and counts what it has seen.

    Strings are texts, and so are bytes, long ints and what `str` makes of an object of another kind,
    which a text replaces if it has to. Dicts with their keys, lists, tuples, sets, and attrs, dataclass
    and pydantic objects are looked into; strings that hold JSON are, too. Of an object that says nothing of
    itself, the attributes are looked at, those of such objects within it not. What holds no text that was
    replaced stays the very object it is.

    Attributes:
        characters: The characters of all texts so far.
        finds: How often `edit` has found something; it counts them here.
        is_changeable: Whether it has seen an object that somebody may still change in place.
    """

    __slots__ = ("_in_silent", "characters", "clean", "edit", "finds", "is_changeable", "values")

    def __init__(self, edit: Edit, clean: Clean | None = None) -> None:
        self.edit = edit
        self.clean = clean
        self.finds = 0
        self.is_changeable = False
        self._in_silent = False
        self.characters = 0
        self.values = 0

    def rewrite(self, value: Any, path: str, depth: int = 0, nesting: int = 0) -> Any:
        """
        Return a value with its texts as `edit` returns them.

        Args:
            value: Anything.
            path: How `edit` is told where it is.
            depth: How deep it is nested.
            nesting: How many JSON texts it is in.

        Raises:
            TooLargeError: If it is too much, too many, or nested too deep; a cycle is.
            Exception: What `edit` raises, or an object that is looked at.
        """
        kind = cast("Any", type(value))
        if kind is str:
            return self._text(value, path, depth, nesting)
        if kind in _PLAIN:
            return value
        self.values += 1
        if self.values > MAX_VALUES or depth > MAX_DEPTH:
            msg = (
                f"{path.partition('.')[0]} holds more than is looked through: {MAX_VALUES:,} values in "
                f"{MAX_DEPTH} levels"
            )
            raise TooLargeError(msg)
        if kind is int:
            return self._int(value, path)
        if issubclass(kind, Mapping):
            return self._mapping(value, path, depth, nesting)
        if issubclass(kind, (list, tuple, AbstractSet)):
            return self._items(value, path, depth, nesting)
        return self._object(value, path, depth, nesting)

    def _count(self, text: str, path: str) -> None:
        self.characters += len(text)
        if self.characters > MAX_CHARACTERS:
            most = f"{MAX_CHARACTERS:,} characters"
            msg = f"{path.partition('.')[0]} holds more text than is looked through: {most}"
            raise TooLargeError(msg)

    def _plain_text(self, text: str, path: str) -> str:
        self._count(text, path)
        if self.clean is None:
            return self.edit(text, path)
        if text in self.clean:
            return text
        before = self.finds
        new = self.edit(text, path)
        if self.finds == before:
            self.clean.add(text)
        return new

    def _text(self, text: str, path: str, depth: int, nesting: int) -> str:
        if _may_be_json(text) and len(text) <= _JSON_CHARACTERS and nesting < _JSON_NESTING:
            if self.clean is not None and text in self.clean:
                self._count(text, path)
                return text
            try:
                parsed = json.loads(text.removeprefix(_BYTE_ORDER_MARK), object_pairs_hook=_unique)
            except (ValueError, RecursionError):
                return self._plain_text(text, path)
            before, seen = self.finds, self.characters
            new = self.rewrite(parsed, path, depth + 1, nesting + 1)
            self.characters = seen
            self._count(text, path)
            if self.clean is not None and self.finds == before:
                self.clean.add(text)
            # What was escaped stays escaped: half a surrogate pair cannot be written otherwise.
            return text if new is parsed else json.dumps(new, ensure_ascii=text.isascii())
        return self._plain_text(text, path)

    def _int(self, value: int, path: str) -> Any:
        # A number that is long enough may be a card's.
        if not _SMALLEST_INT <= value < _LARGEST_INT:
            return value
        text = str(value)
        new = self._plain_text(text, path)
        return value if new is text else new

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int, nesting: int) -> Any:
        result: dict[Any, Any] = {}
        changed = False
        # Past `items` of our own read-only dicts, which would make a copy of every value.
        pairs: list[tuple[Any, Any]] = list(_DICT.items(value) if isinstance(value, dict) else value.items())
        for key, item in pairs:
            new_key = self._key(key, path, depth, nesting)
            shown = str(new_key)[:_LONGEST_KEY] if isinstance(new_key, (str, int)) else type(key).__name__
            new = self.rewrite(item, f"{path}.{shown}"[:_LONGEST_PATH], depth + 1, nesting)
            changed = changed or new is not item or new_key is not key
            while new_key in result:
                new_key = f"{new_key}~"
            result[new_key] = new
        return result if changed else value

    def _key(self, key: Any, path: str, depth: int, nesting: int) -> Any:
        if not isinstance(key, str):
            return self.rewrite(key, path, depth + 1, nesting)
        plain = str.__str__(key)
        edited = self._plain_text(plain, path)
        return key if edited is plain else edited

    def _items(self, value: Any, path: str, depth: int, nesting: int) -> Any:
        kind = cast("Any", type(value))
        fields: Iterable[str] = getattr(value, "_fields", ()) if issubclass(kind, tuple) else ()
        # Past `__iter__` of our own read-only lists, as above.
        old: list[Any] = list(_LIST.__iter__(value) if issubclass(kind, list) else value)
        names = [f"{path}.{name}" for name in fields] if fields else [f"{path}[{i}]" for i in range(len(old))]
        new = [
            self.rewrite(item, name[:_LONGEST_PATH], depth + 1, nesting)
            for item, name in zip(old, names, strict=True)
        ]
        if all(one is other for one, other in zip(old, new, strict=True)):
            return value
        if fields:
            make: Any = value._make
            return make(new)
        if issubclass(kind, list):
            return new
        return (tuple if issubclass(kind, tuple) else frozenset if issubclass(kind, frozenset) else set)(new)

    def _object(self, value: Any, path: str, depth: int, nesting: int) -> Any:
        kind = cast("Any", type(value))
        if issubclass(kind, str):
            plain = str.__str__(value)
            new = self._text(plain, path, depth, nesting)
            return value if new is plain else new
        if issubclass(kind, (bytes, bytearray, memoryview)):
            text = bytes(value).decode("utf-8", "surrogateescape")
            edited = self._text(text, path, depth, nesting)
            return value if edited is text else cast("Any", kind)(edited.encode("utf-8", "surrogateescape"))
        if issubclass(kind, type):
            return value
        self.is_changeable = self.is_changeable or kind.__setattr__ is not _OF_FROZEN
        if attrs.has(kind):
            changes = self._fields(value, [field.name for field in attrs.fields(kind)], path, depth, nesting)
            return _evolved(value, changes) if changes else value
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            changes = self._fields(value, names, path, depth, nesting)
            # Not by `replace`, which asks for what the constructor took and did not keep.
            return _with(copy.copy(value), changes) if changes else value
        if isinstance(getattr(kind, "model_fields", None), dict) and hasattr(kind, "model_copy"):
            names = [*kind.model_fields, *(getattr(value, "model_extra", None) or ())]
            changes = self._fields(value, names, path, depth, nesting)
            return value.model_copy(update=changes) if changes else value
        if _is_silent(kind):
            return self._silent(value, path, depth, nesting)
        return self._unknown(value, path)

    def _fields(
        self, value: Any, names: Iterable[str], path: str, depth: int, nesting: int
    ) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for name in names:
            old = getattr(value, name, _MISSING)
            if old is _MISSING:
                continue
            new = self.rewrite(old, f"{path}.{name}"[:_LONGEST_PATH], depth + 1, nesting)
            if new is not old:
                changes[name] = new
        return changes

    def _silent(self, value: Any, path: str, depth: int, nesting: int) -> Any:
        # What such an object leads to may be the whole program; one of these is what a text may come in.
        if self._in_silent:
            return value
        self._in_silent = True
        try:
            changes = self._fields(value, _attributes_of(value), path, depth, nesting)
        finally:
            self._in_silent = False
        return _with(copy.copy(value), changes) if changes else value

    def _unknown(self, value: Any, path: str) -> Any:
        text = text_of(value) if isinstance(value, BaseException) else str.__str__(str(value))
        new = self._plain_text(text, path)
        return value if new is text else new


def size_of(value: Any, path: str) -> int:
    """
    Return how many characters of text are in a value.

    Raises:
        TooLargeError: If there is more than can be looked through.
    """
    texts = Texts(lambda text, _: text)
    texts.rewrite(value, path)
    return texts.characters


def _may_be_json(text: str) -> bool:
    first = text[:1]
    if first in _BEFORE_JSON:
        first = text.lstrip(_BEFORE_JSON)[:1]
    return first != "" and first in _JSON_STARTS


def _is_silent(kind: Any) -> bool:
    says_nothing = kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
    return says_nothing or kind is SimpleNamespace


def _attributes_of(value: Any) -> list[str]:
    slots = [
        name
        for base in type(value).__mro__
        for name, member in vars(base).items()
        if inspect.ismemberdescriptor(member) and not name.startswith("__")
    ]
    return [*getattr(value, "__dict__", ()), *slots]


def _evolved(value: Any, changes: Mapping[str, Any]) -> Any:
    given: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for field in attrs.fields(cast("Any", type(value))):
        if not field.init:
            # The constructor would set it anew.
            kept[field.name] = changes.get(field.name, getattr(value, field.name, None))
        elif field.name in changes:
            given[str(field.alias)] = changes[field.name]
    return _with(attrs.evolve(value, **given), kept)


def _with(new: Any, changes: Mapping[str, Any]) -> Any:
    for name, change in changes.items():
        object.__setattr__(new, name, change)
    return new


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two equal keys the parser keeps one, and the other would be neither seen nor replaced.
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError
    return result
