"""
A bounded, redacted copy of any value that JSON can hold; making it cannot fail.
"""

from __future__ import annotations

import json
import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import islice
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from ._frames import error_frames, error_message
from ._readonly import ReadOnlyDict, ReadOnlyList
from ._redact import MASK, apply, default_redact, is_ordinary, is_secret, mask_text, redact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    Redact: TypeAlias = Callable[[tuple[str, ...], Any], Any]
    # How a type is read: the walk, the value, its path, whether a key above names a secret, its depth.
    Reader: TypeAlias = Callable[["_Walk", Any, tuple[str, ...], bool, int], Any]

T = TypeVar("T")

CUT: Final = "…"
CYCLE: Final = "<cycle>"

# A text is redacted before it is cut, but no more of it is looked at than could be kept and this much; and
# when masks have made that shorter than what could be kept, its end is dropped, where a secret may have been
# cut before it could be told for one.
_MARGIN: Final = 4096
_TAIL: Final = 1024

_SMALL_KEY: Final = 128
_SMALL: Final = 1 << 63
# What is nested deeper than this may be nested in itself.
_ORDINARY_DEPTH: Final = 8
_LOSSES: Final = 100
# Python refuses to write an integer of more than 4,300 digits, or 640 where it is told to; this is 602.
_BITS: Final = 2000
_BIG: Final = 1 << _BITS


# The methods of the built-in classes: those of a subclass may do anything.
_dict_items: Final[Callable[[Any], Iterable[tuple[Any, Any]]]] = dict[Any, Any].items
_list_iter: Final[Callable[[Any], Iterable[Any]]] = list[Any].__iter__
_tuple_iter: Final[Callable[[Any], Iterable[Any]]] = tuple[Any, ...].__iter__


class Limits(NamedTuple):
    """
    How much of a value is copied.

    Attributes:
        depth: Containers inside containers.
        nodes: Values in all, containers included.
        text: Characters of one text, the `…` that ends a cut one included.
        total: Characters of all texts and keys.
    """

    depth: int = 64
    nodes: int = 10_000
    text: int = 65_536
    total: int = 1_000_000


class Plain(NamedTuple):
    """
    What became of a value.

    Attributes:
        value: None, bools, ints, finite floats, strings, and lists and dicts of them; fresh ones.
        lossy: The paths at which the value cannot be told from the copy, a hundred at most; a masked
            secret is none.
    """

    value: Any
    lossy: tuple[tuple[str, ...], ...]


_DEFAULT: Final = Limits()


def plain(
    value: object,
    *,
    redact: Redact = default_redact,
    path: tuple[str, ...] = (),
    limits: Limits = _DEFAULT,
) -> Plain:
    """
    Copy a value into what JSON can hold, masked and bounded.

    Strings, ints, finite floats, bools and None stay; lists and tuples become lists; mappings, named
    tuples, dataclasses, attrs and pydantic classes become dicts; enum members their value; dates ISO 8601;
    decimals, fractions, UUIDs, paths and IP addresses their text; an exception a dict of `type`, `text` and
    `frames`. None of that is lossy. What is, is noted:

    - a text that was cut ends in `…`; a list that was cut ends in the item `"…"`, a dict in the key `"…"`;
      `"…"` stands for what lies too deep
    - a value inside itself is `"<cycle>"`
    - NaN and infinities are `"NaN"`, `"Infinity"` and `"-Infinity"`; an int of over 600 digits
      is `"<int of 2001 bits>"`
    - bytes are their UTF-8 text, what is none escaped; sets are lists, sorted
    - a class is `"<class module.Name>"`, a function `"<function module.name>"`
    - a key that is no string becomes one; one that is taken already gets a number
    - an attribute that raises is `"<unreadable>"`
    - anything else is its own `__repr__`, or `"<module.Type>"` if it has none, raises, or is a type of the
      standard library, whose text would tell nothing but an address

    The value is read only, never changed, and no object in it is copied by its own means.

    Args:
        value: Anything.
        redact: Asked about every leaf, with the keys that lead to it; of a long text it sees only what
            could be kept and 4,096 characters more. If it raises, the leaf is masked.
        path: The keys that lead to the value itself.
        limits: How much is copied.

    Returns:
        The copy, and where it is lossy. No Exception is ever raised; a BaseException that is none, such as a
        KeyboardInterrupt in a `__repr__`, goes through. Runs on the caller's thread.
    """
    if redact is default_redact and not any(map(is_secret, path)):
        room = _Room(limits)
        try:
            short = _copy(value, limits.text, min(_ORDINARY_DEPTH, limits.depth), room)
            # Where it was used up, the walk would have left something out.
            if room.chars > 0:
                return Plain(short, ())
        except (_OddError, RuntimeError):
            # What changes in another thread meanwhile is a RuntimeError.
            pass
    walk = _Walk(redact, limits)
    try:
        copy = walk.walk(value, path, walk.default and any(map(is_secret, path)), 0)
    except Exception:
        # There was no stack left to say more.
        return Plain(CUT, (path,))
    return Plain(copy, tuple(walk.lossy))


class _OddError(Exception):
    """Something in a value takes more than a copy."""


class _Room:
    """What is left of the limits for the copy of an ordinary value."""

    __slots__ = ("chars", "nodes")

    def __init__(self, limits: Limits) -> None:
        self.chars = limits.total
        self.nodes = limits.nodes


def _copy(value: Any, text_limit: int, depth: int, room: _Room) -> Any:
    """
    Copy what nearly all values are: plain containers of short texts and numbers, with nothing to mask.

    It does what the walk would do to them, in a third of the time, and anything else is an `_OddError`.
    """
    kind = cast("object", type(value))
    if kind is str:
        size = len(value)
        room.chars -= size
        if size <= text_limit and room.chars > 0 and is_ordinary(value):
            return value
    elif value is None or kind is bool or (kind is int and -_SMALL < value < _SMALL):
        return value
    elif kind is float:
        if math.isfinite(value):
            return value
    elif kind is dict or kind is ReadOnlyDict:
        room.nodes -= len(value)
        if depth > 0 and room.nodes > 0:
            copy: dict[str, Any] = {}
            for key, item in _dict_items(value):
                if type(key) is not str or len(key) > _SMALL_KEY or not _is_open(key):
                    raise _OddError
                room.chars -= len(key)
                copy[key] = _copy(item, text_limit, depth - 1, room)
            return copy
    elif kind is list or kind is ReadOnlyList:
        room.nodes -= len(value)
        if depth > 0 and room.nodes > 0:
            return [_copy(item, text_limit, depth - 1, room) for item in _list_iter(value)]
    raise _OddError


def type_name(kind: Any) -> str:
    """
    Name a class as `module.Name`.

    Args:
        kind: Any class or function, hostile ones included.

    Returns:
        The name, or `object` where the class cannot tell it.
    """
    try:
        return ".".join([kind.__module__, kind.__qualname__])
    except Exception:
        return "object"


class _Walk:
    """One copy in the making: what is left of its limits, what is open, what was lost."""

    __slots__ = ("chars", "default", "depth", "lossy", "nodes", "open", "redact", "text_limit")

    def __init__(self, redact: Redact, limits: Limits) -> None:
        self.redact = redact
        self.default = redact is default_redact
        self.depth = limits.depth
        self.nodes = limits.nodes
        self.text_limit = max(limits.text, 1)
        self.chars = limits.total
        self.lossy: list[tuple[str, ...]] = []
        self.open: set[int] = set()

    def walk(self, value: object, path: tuple[str, ...], secret: bool, depth: int) -> Any:
        kind = type(value)
        try:
            if kind is str:
                return _read_str(self, value, path, secret, depth)
            if kind is dict:
                return _read_dict(self, value, path, secret, depth)
            if kind is list:
                return _read_list(self, value, path, secret, depth)
            if value is None or kind is bool or kind is int or kind is float:
                return self.scalar(value, path)
            return _reader(cast("Hashable", kind))(self, value, path, secret, depth)
        except Exception:
            return self.opaque(value, path, secret)

    def lose(self, path: tuple[str, ...], instead: T) -> T:
        if len(self.lossy) < _LOSSES:
            self.lossy.append(path)
        return instead

    def ask(self, value: object, path: tuple[str, ...]) -> Any:
        """Redact a leaf with the user's function."""
        answer = apply(self.redact, path, value)
        return self.number(value, path) if answer is value else self.settle(answer, path)

    def settle(self, answer: Any, path: tuple[str, ...]) -> Any:
        """Take what a user's function made of a leaf; it is asked no more about that."""
        if type(answer) is str:
            return self.cut(answer, path, len(answer))
        limits = Limits(depth=8, nodes=1000, text=self.text_limit, total=max(self.chars, 1))
        inner = plain(answer, redact=_keep, path=path, limits=limits)
        self.lossy += inner.lossy[: _LOSSES - len(self.lossy)]
        return inner.value

    def scalar(self, value: object, path: tuple[str, ...]) -> Any:
        return self.number(value, path) if self.default else self.ask(value, path)

    def number(self, value: object, path: tuple[str, ...]) -> Any:
        if type(value) is float and not math.isfinite(value):
            return self.lose(path, json.dumps(value))
        if type(value) is int and not -_BIG < value < _BIG:
            return self.lose(path, f"<int of {value.bit_length()} bits>")
        return value

    def text(self, value: str, path: tuple[str, ...], secret: bool) -> Any:
        size = len(value)
        if self.default and not secret and size <= self.text_limit and size <= self.chars:
            # Nearly every text; the rest of this method does the same to it.
            masked = redact_text(value)
            if masked is value:
                self.chars -= size
                return value
            return self.cut(masked, path, size)
        if size > self.text_limit + _MARGIN:
            value = value[: self.text_limit + _MARGIN]
        if self.default:
            return self.cut(MASK if secret else redact_text(value), path, size)
        answer = apply(self.redact, path, value)
        return self.cut(answer, path, size) if type(answer) is str else self.settle(answer, path)

    def cut(self, text: str, path: tuple[str, ...], size: int) -> str:
        limit = min(self.text_limit, max(self.chars, 1))
        # Of a text that was not looked at whole, a short answer of a user's function is its own words.
        whole = size <= self.text_limit + _MARGIN or text == MASK or (not self.default and len(text) <= _TAIL)
        if not whole:
            limit = max(min(limit, len(text) - _TAIL), 1)
        self.chars -= min(len(text), limit)
        if whole and len(text) <= limit:
            return text
        return self.lose(path, text[: limit - 1] + CUT)

    def opaque(self, value: object, path: tuple[str, ...], secret: bool) -> Any:
        return self.lose(path, self.text(f"<{type_name(type(value))}>", path, secret))

    def enter(self, value: object, path: tuple[str, ...], depth: int) -> str | None:
        """Open a container, or say what stands in its place."""
        mark = id(value)
        if mark in self.open:
            return self.lose(path, CYCLE)
        if depth >= self.depth or self.nodes <= 0:
            return self.lose(path, CUT)
        self.open.add(mark)
        return None

    def mapping(
        self, value: object, items: Iterable[tuple[Any, Any]], path: tuple[str, ...], secret: bool, depth: int
    ) -> Any:
        if (instead := self.enter(value, path, depth)) is not None:
            return instead
        result: dict[str, Any] = {}
        try:
            for key, item in items:
                if self.nodes <= 0 or self.chars <= 0:
                    result[CUT] = self.lose(path, CUT)
                    break
                self.nodes -= 1
                if type(key) is str and len(key) <= _SMALL_KEY:
                    name, hidden = _key(key)
                else:
                    name, hidden = self.key(key, path)
                    key = name  # noqa: PLW2901 - the path is made of texts
                if name in result:
                    self.lose((*path, name), name)
                    while name in result:
                        name = f"{name}~{len(result)}"
                self.chars -= len(name)
                if item is None or item is True or item is False:
                    result[name] = item if self.default else self.ask(item, (*path, key))
                else:
                    result[name] = self.walk(item, (*path, key), secret or hidden, depth + 1)
        except Exception:
            # A mapping that cannot be read to its end is kept as far as it could.
            result[CUT] = self.lose(path, CUT)
        finally:
            self.open.discard(id(value))
        return result

    def sequence(
        self, value: object, items: Iterable[Any], path: tuple[str, ...], secret: bool, depth: int
    ) -> Any:
        if (instead := self.enter(value, path, depth)) is not None:
            return instead
        result: list[Any] = []
        try:
            for index, item in enumerate(items):
                if self.nodes <= 0 or self.chars <= 0:
                    result.append(self.lose(path, CUT))
                    break
                self.nodes -= 1
                result.append(self.walk(item, (*path, str(index)), secret, depth + 1))
        except Exception:
            # As above.
            result.append(self.lose(path, CUT))
        finally:
            self.open.discard(id(value))
        return result

    def key(self, key: Any, path: tuple[str, ...]) -> tuple[str, bool]:
        """Make a text of a key that is none, or is a long one."""
        # Not isinstance, which asks an object for its `__class__`.
        if issubclass(type(key), str):
            name = str.__str__(key)
        else:
            copy = plain(key, redact=_keep, limits=Limits(8, 100, _SMALL_KEY, _SMALL_KEY)).value
            name = copy if type(copy) is str else json.dumps(copy, ensure_ascii=False)
            self.lose((*path, name), name)
        masked = mask_text(name[: self.text_limit + _MARGIN])
        return self.cut(masked, path, len(name)), is_secret(name)


def _keep(_path: tuple[str, ...], value: Any) -> Any:
    return value


@lru_cache(maxsize=4096)
def _is_open(key: str) -> bool:
    return mask_text(key) == key and not is_secret(key)


@lru_cache(maxsize=4096)
def _key(key: str) -> tuple[str, bool]:
    return mask_text(key), is_secret(key)


@lru_cache(maxsize=512)
def _reader(kind: type) -> Reader:
    for base in kind.__mro__:
        if base is tuple and hasattr(kind, "_fields"):
            return _fields_reader(cast("Any", kind)._fields)
        rule = _BY_CLASS.get(base) or _BY_NAME.get((base.__module__, base.__qualname__))
        if rule is not None:
            return rule
    if (fields := getattr(kind, "__attrs_attrs__", None)) is not None:
        return _fields_reader([field.name for field in fields])
    for attribute in ("__dataclass_fields__", "__pydantic_fields__"):
        if isinstance(fields := getattr(kind, attribute, None), dict):
            return _fields_reader(list(cast("dict[str, Any]", fields)))
    for abstract, rule in _BY_ABSTRACT:
        if issubclass(kind, abstract):
            return rule
    if (
        getattr(kind, "__repr__", None) is object.__repr__
        or kind.__module__.partition(".")[0] in sys.stdlib_module_names
    ):
        return _read_opaque
    return _read_repr


def _fields_reader(names: Iterable[str]) -> Reader:
    known = tuple(names)

    def read(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
        items = ((name, _attribute(value, name)) for name in known)
        return walk.mapping(value, items, path, secret, depth)

    return read


class _Unreadable:
    """What stands in the place of an attribute that raised when it was read."""


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception:
        return _Unreadable()


def _read_opaque(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.opaque(value, path, secret)


def _read_unreadable(walk: _Walk, _value: Any, path: tuple[str, ...], _secret: bool, _depth: int) -> Any:
    return walk.lose(path, "<unreadable>")


def _read_repr(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.lose(path, walk.text(str.__str__(repr(value)), path, secret))


def _read_text(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.text(str.__str__(str(value)), path, secret)


def _read_iso(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.text(str.__str__(value.isoformat()), path, secret)


def _read_complex(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.lose(path, walk.text(complex.__repr__(value), path, secret))


def _read_str(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.text(str.__str__(value), path, secret)


def _read_int(walk: _Walk, value: Any, path: tuple[str, ...], _secret: bool, _depth: int) -> Any:
    return walk.scalar(int.__int__(value), path)


def _read_float(walk: _Walk, value: Any, path: tuple[str, ...], _secret: bool, _depth: int) -> Any:
    return walk.scalar(float.__float__(value), path)


def _read_bytes(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    # The function is asked twice: about the bytes, and about the text that they are.
    answer = value if walk.default else apply(walk.redact, path, value)
    if not isinstance(answer, bytes | bytearray | memoryview):
        return walk.settle(answer, path)
    start = bytes(cast("Any", answer)[: walk.text_limit + _MARGIN + 1])
    return walk.lose(path, walk.text(start.decode("utf-8", "backslashreplace"), path, secret))


def _read_dict(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    # A copy made at once: other threads may write to the dict while it is walked.
    return walk.mapping(value, list(islice(_dict_items(value), walk.nodes + 1)), path, secret, depth)


def _read_list(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    return walk.sequence(value, _list_iter(value), path, secret, depth)


def _read_tuple(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    return walk.sequence(value, _tuple_iter(value), path, secret, depth)


def _read_iterable(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    return walk.sequence(value, value, path, secret, depth)


def _read_set(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    copy = walk.sequence(value, value, path, secret, depth)
    return walk.lose(path, copy if type(copy) is str else sorted(copy, key=str))


def _read_mapping(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    return walk.mapping(value, ((key, value[key]) for key in value), path, secret, depth)


def _read_namespace(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    return walk.mapping(value, list(_dict_items(value.__dict__)), path, secret, depth)


def _read_enum(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    return walk.walk(value.value, path, secret, depth)


def _read_error(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, depth: int) -> Any:
    frames = error_frames(value)  # before its text is made, which may raise the error again
    known = {"type": type_name(type(value)), "text": error_message(value), "frames": frames}
    return walk.mapping(value, known.items(), path, secret, depth)


def _read_class(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.lose(path, walk.text(f"<class {type_name(value)}>", path, secret))


def _read_function(walk: _Walk, value: Any, path: tuple[str, ...], secret: bool, _depth: int) -> Any:
    return walk.lose(path, walk.text(f"<function {type_name(value)}>", path, secret))


_BY_CLASS: Final[dict[type, Reader]] = {
    str: _read_str,
    int: _read_int,
    float: _read_float,
    complex: _read_complex,
    bytes: _read_bytes,
    bytearray: _read_bytes,
    memoryview: _read_bytes,
    dict: _read_dict,
    list: _read_list,
    tuple: _read_tuple,
    deque: _read_iterable,
    BaseException: _read_error,
    type: _read_class,
    FunctionType: _read_function,
    _Unreadable: _read_unreadable,
}

# By name, for modules that are not imported for it.
_BY_NAME: Final[dict[tuple[str, str], Reader]] = {
    ("collections", "UserString"): _read_text,
    ("datetime", "date"): _read_iso,
    ("datetime", "time"): _read_iso,
    ("datetime", "timedelta"): _read_text,
    ("decimal", "Decimal"): _read_text,
    ("enum", "Enum"): _read_enum,
    ("fractions", "Fraction"): _read_text,
    ("ipaddress", "_IPAddressBase"): _read_text,
    ("pathlib", "PurePath"): _read_text,
    ("pathlib._local", "PurePath"): _read_text,
    ("types", "SimpleNamespace"): _read_namespace,
    ("uuid", "UUID"): _read_text,
}

_BY_ABSTRACT: Final[tuple[tuple[type, Reader], ...]] = (
    (Mapping, _read_mapping),
    (Sequence, _read_iterable),
    (AbstractSet, _read_set),
)
