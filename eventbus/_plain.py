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
from ._redact import MASK, apply, default_redact, is_secret, mask_text, redact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    Redact: TypeAlias = Callable[[tuple[str, ...], Any], Any]
    # The last key that leads to a value, and what leads there; a tuple of them is made for users' functions.
    Path: TypeAlias = "tuple[Path, str | int] | None"
    # How a type is read: the walk, the value, its path, whether a key above names a secret, its depth.
    Reader: TypeAlias = Callable[["Walk", Any, Path, bool, int], Any]

T = TypeVar("T")

CUT: Final = "…"
CYCLE: Final = "<cycle>"

# A text is redacted before it is cut, but no more of it is looked at than could be kept and this much; and
# when masks have made that shorter than what could be kept, its end is dropped, where a secret may have been
# cut before it could be told for one.
_MARGIN: Final = 4096
_TAIL: Final = 1024

_SMALL_KEY: Final = 128
# A number between these is none that JSON cannot hold.
_LEAST: Final = -(1 << 47)
_MOST: Final = 1 << 47
# Python refuses to write an integer of more than 4,300 digits, or 640 where it is told to; this is 602.
_BITS: Final = 2000
_BIG: Final = 1 << _BITS


# As it is, but for what type checkers do not know of the type of an Any.
type_of: Final = cast("Callable[[Any], type]", type)

# The methods of the built-in classes: those of a subclass may do anything.
dict_items: Final[Callable[[Any], Collection[tuple[Any, Any]]]] = dict[Any, Any].items
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
        lossy: Whether the value cannot be told from the copy; a masked secret is no loss.
    """

    value: Any
    lossy: bool


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
    `frames`. None of that is lossy. What is, is told:

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
        The copy, and whether it is lossy. No Exception is ever raised; a BaseException that is none, such as
        a KeyboardInterrupt in a `__repr__`, goes through. Runs on the caller's thread.
    """
    walk = Walk(redact, limits)
    return Plain(walk.copy(value, path), walk.lossy)


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


class Walk:
    """
    Copies in the making: what is left of their limits, what is open, whether something was lost.

    It does what `plain` says; what is copied by the same one shares its limits.
    """

    __slots__ = ("chars", "default", "depth", "lossy", "nodes", "open", "redact", "text_limit")

    chars: int
    depth: int
    nodes: int

    def __init__(self, redact: Redact, limits: Limits) -> None:
        self.redact = redact
        self.default = redact is default_redact
        self.depth, self.nodes, text, self.chars = limits
        self.text_limit = text if text > 1 else 1
        self.lossy = False
        self.open: set[int] = set()

    def copy(self, value: object, keys: tuple[str, ...]) -> Any:
        """
        Return the copy of a value that these keys lead to.
        """
        path: Path = None
        secret = False
        for key in keys:
            path = (path, key)
            secret = secret or is_secret(key)
        try:
            return self.walk(value, path, secret, 0)
        except Exception:
            # There was no stack left to say more.
            return self.lose(CUT)

    def walk(self, value: Any, path: Path, secret: bool, depth: int) -> Any:
        kind = type_of(value)
        try:
            if kind is str:
                return self.text(value, path, secret)
            if kind is dict or kind is ReadOnlyDict:
                return _read_dict(self, value, path, secret, depth)
            if kind is list or kind is ReadOnlyList:
                return self.sequence(value, _list_iter(value), path, secret, depth)
            if value is None or kind is bool or kind is int or kind is float:
                return self.scalar(value, path)
            return _reader(kind)(self, value, path, secret, depth)
        except Exception:
            return self.opaque(value, path, secret)

    def lose(self, instead: T) -> T:
        self.lossy = True
        return instead

    def ask(self, value: object, path: Path) -> Any:
        """Redact a leaf with the user's function."""
        answer = apply(self.redact, _keys(path), value)
        return self.number(value) if answer is value else self.settle(answer)

    def settle(self, answer: Any) -> Any:
        """Take what a user's function made of a leaf; it is asked no more about that."""
        if type(answer) is str:
            return self.cut(answer, len(answer))
        limits = Limits(depth=8, nodes=1000, text=self.text_limit, total=max(self.chars, 1))
        inner = plain(answer, redact=_keep, limits=limits)
        self.lossy = self.lossy or inner.lossy
        return inner.value

    def scalar(self, value: object, path: Path) -> Any:
        return self.number(value) if self.default else self.ask(value, path)

    def number(self, value: object) -> Any:
        if type(value) is float and not math.isfinite(value):
            return self.lose(json.dumps(value))
        if type(value) is int and not -_BIG < value < _BIG:
            return self.lose(f"<int of {value.bit_length()} bits>")
        return value

    def text(self, value: str, path: Path, secret: bool) -> Any:
        size = len(value)
        if self.default and not secret and size <= self.text_limit and size <= self.chars:
            # Nearly every text; the rest of this method does the same to it.
            masked = redact_text(value)
            if masked is value:
                self.chars -= size
                return value
            return self.cut(masked, size)
        if size > self.text_limit + _MARGIN:
            value = value[: self.text_limit + _MARGIN]
        if self.default:
            return self.cut(MASK if secret else redact_text(value), size)
        answer = apply(self.redact, _keys(path), value)
        return self.cut(answer, size) if type(answer) is str else self.settle(answer)

    def cut(self, text: str, size: int) -> str:
        limit = min(self.text_limit, max(self.chars, 1))
        # Of a text that was not looked at whole, a short answer of a user's function is its own words.
        whole = size <= self.text_limit + _MARGIN or text == MASK or (not self.default and len(text) <= _TAIL)
        if not whole:
            limit = max(min(limit, len(text) - _TAIL), 1)
        self.chars -= min(len(text), limit)
        if whole and len(text) <= limit:
            return text
        return self.lose(text[: limit - 1] + CUT)

    def opaque(self, value: object, path: Path, secret: bool) -> Any:
        return self.lose(self.text(f"<{type_name(type(value))}>", path, secret))

    def mapping(
        self, value: object, items: Iterable[tuple[Any, Any]], path: Path, secret: bool, depth: int
    ) -> Any:
        mark = id(value)
        if mark in self.open or depth >= self.depth or self.nodes <= 0:
            return self.lose(CYCLE if mark in self.open else CUT)
        self.open.add(mark)
        # Nearly all that is in a container is copied here, without a call for each.
        short = self.text_limit if self.default and not secret else -1
        nodes, chars = self.nodes, self.chars
        result: dict[str, Any] = {}
        try:
            for key, item in items:
                if nodes <= 0 or chars <= 0:
                    result[CUT] = self.lose(CUT)
                    break
                nodes -= 1
                if type(key) is str and len(key) <= _SMALL_KEY:
                    name, hidden = _key(key)
                else:
                    self.chars = chars
                    name, hidden = self.key(key)
                    key = name  # noqa: PLW2901 - the path is made of texts
                while name in result:
                    name = self.lose(f"{name}~{len(result)}")
                chars -= len(name)
                kind = type_of(item)
                if kind is str:
                    size = len(item)
                    if size <= short and size <= chars and not hidden and redact_text(item) is item:
                        chars -= size
                        result[name] = item
                        continue
                elif self.default and (
                    item is None or ((kind is int or kind is float or kind is bool) and _LEAST < item < _MOST)
                ):
                    result[name] = item
                    continue
                self.nodes, self.chars = nodes, chars
                result[name] = self.walk(item, (path, key), secret or hidden, depth + 1)
                nodes, chars = self.nodes, self.chars
        except Exception:
            # A mapping that cannot be read to its end is kept as far as it could.
            result[CUT] = self.lose(CUT)
        self.nodes, self.chars = nodes, chars
        self.open.discard(mark)
        return result

    def sequence(self, value: object, items: Iterable[Any], path: Path, secret: bool, depth: int) -> Any:
        # As for a mapping, without its keys.
        mark = id(value)
        if mark in self.open or depth >= self.depth or self.nodes <= 0:
            return self.lose(CYCLE if mark in self.open else CUT)
        self.open.add(mark)
        short = self.text_limit if self.default and not secret else -1
        nodes, chars = self.nodes, self.chars
        result: list[Any] = []
        try:
            for item in items:
                if nodes <= 0 or chars <= 0:
                    result.append(self.lose(CUT))
                    break
                nodes -= 1
                kind = type_of(item)
                if kind is str:
                    size = len(item)
                    if size <= short and size <= chars and redact_text(item) is item:
                        chars -= size
                        result.append(item)
                        continue
                elif self.default and (
                    item is None or ((kind is int or kind is float or kind is bool) and _LEAST < item < _MOST)
                ):
                    result.append(item)
                    continue
                self.nodes, self.chars = nodes, chars
                result.append(self.walk(item, (path, len(result)), secret, depth + 1))
                nodes, chars = self.nodes, self.chars
        except Exception:
            result.append(self.lose(CUT))
        self.nodes, self.chars = nodes, chars
        self.open.discard(mark)
        return result

    def key(self, key: Any) -> tuple[str, bool]:
        """Make a text of a key that is none, or is a long one."""
        # Not isinstance, which asks an object for its `__class__`.
        if issubclass(type(key), str):
            name = str.__str__(key)
        else:
            copy = plain(key, redact=_keep, limits=Limits(8, 100, _SMALL_KEY, _SMALL_KEY)).value
            name = self.lose(copy if type(copy) is str else json.dumps(copy, ensure_ascii=False))
        masked = mask_text(name[: self.text_limit + _MARGIN])
        return self.cut(masked, len(name)), is_secret(name)


def _keys(path: Path) -> tuple[str, ...]:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(str(key))
    return tuple(reversed(keys))


def _keep(_path: tuple[str, ...], value: Any) -> Any:
    return value


# More than one payload has: a large one is to find its keys again.
@lru_cache(maxsize=16_384)
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

    def read(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
        try:
            items = [(name, getattr(value, name)) for name in known]
        except Exception:
            items = [(name, _attribute(value, name)) for name in known]
        return walk.mapping(value, items, path, secret, depth)

    return read


class _Unreadable:
    """What stands in the place of an attribute that raised when it was read."""


def _attribute(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception:
        return _Unreadable()


def _read_opaque(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.opaque(value, path, secret)


def _read_unreadable(walk: Walk, _value: Any, _path: Path, _secret: bool, _depth: int) -> Any:
    return walk.lose("<unreadable>")


def _read_repr(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.lose(walk.text(str.__str__(repr(value)), path, secret))


def _read_text(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.text(str.__str__(str(value)), path, secret)


def _read_iso(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.text(str.__str__(value.isoformat()), path, secret)


def _read_complex(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.lose(walk.text(complex.__repr__(value), path, secret))


def _read_str(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.text(str.__str__(value), path, secret)


def _read_int(walk: Walk, value: Any, path: Path, _secret: bool, _depth: int) -> Any:
    return walk.scalar(int.__int__(value), path)


def _read_float(walk: Walk, value: Any, path: Path, _secret: bool, _depth: int) -> Any:
    return walk.scalar(float.__float__(value), path)


def _read_bytes(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    # The function is asked twice: about the bytes, and about the text that they are.
    answer = value if walk.default else apply(walk.redact, _keys(path), value)
    if not isinstance(answer, bytes | bytearray | memoryview):
        return walk.settle(answer)
    start = bytes(cast("Any", answer)[: walk.text_limit + _MARGIN + 1])
    return walk.lose(walk.text(start.decode("utf-8", "backslashreplace"), path, secret))


def _read_dict(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    items = dict_items(value)
    # Taken at once: other threads may write to the dict while it is walked.
    taken = list(items if len(items) <= walk.nodes else islice(items, walk.nodes + 1))
    return walk.mapping(value, taken, path, secret, depth)


def _read_list(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    return walk.sequence(value, _list_iter(value), path, secret, depth)


def _read_tuple(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    return walk.sequence(value, _tuple_iter(value), path, secret, depth)


def _read_iterable(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    return walk.sequence(value, value, path, secret, depth)


def _read_set(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    copy = walk.sequence(value, value, path, secret, depth)
    return walk.lose(copy if type(copy) is str else sorted(copy, key=str))


def _read_mapping(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    return walk.mapping(value, ((key, value[key]) for key in value), path, secret, depth)


def _read_namespace(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    return walk.mapping(value, list(dict_items(value.__dict__)), path, secret, depth)


def _read_enum(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    return walk.walk(value.value, path, secret, depth)


def _read_error(walk: Walk, value: Any, path: Path, secret: bool, depth: int) -> Any:
    frames = error_frames(value)  # before its text is made, which may raise the error again
    known = {"type": type_name(type(value)), "text": error_message(value), "frames": frames}
    return walk.mapping(value, known.items(), path, secret, depth)


def _read_class(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.lose(walk.text(f"<class {type_name(value)}>", path, secret))


def _read_function(walk: Walk, value: Any, path: Path, secret: bool, _depth: int) -> Any:
    return walk.lose(walk.text(f"<function {type_name(value)}>", path, secret))


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
