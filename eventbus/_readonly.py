"""
Read-only dict and list subclasses that wrap nested values on access.

An event hands its mappings and lists to handlers that must not change the run's own. A `MappingProxyType`
would do that, but `json.dumps`, `copy` and `pickle` refuse it; these stay a `dict` and a `list` to whoever
reads them. Only the outermost level is copied when an event is built: what is nested stays the emitter's
until somebody reads it, and is then replaced, inside the copy, by a read-only copy of its own.

The unbound methods of `dict` and `list` (`dict.values(mapping)`), and C code that reads a list's storage
(`heapq`), go around this: they can change an event's copy, and reach what is nested in it.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar, overload

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

# The methods of the built-in classes, past our own. The aliases tell type checkers what a bare `dict.items`
# leaves unknown; `super()` is slower, and says no more.
_DICT: type[dict[Any, Any]] = dict
_LIST: type[list[Any]] = list


class ReadOnlyDict(dict[K, V]):
    """
    Hold a copy of a mapping that its readers cannot change.

    Equality, `len`, `in`, `repr`, `json.dumps` and `isinstance(value, dict)` are those of a dict; `pickle`
    gives a read-only one back. Whatever makes another dict of it (`copy`, `|`, `{**mapping}`) gives a plain
    one that can be changed, with read-only values; `copy.deepcopy` gives plain dicts and lists all the way
    down. Reading from several threads is safe.

    Raises:
        TypeError: From every method that would change it.

    """

    __slots__ = ()

    def __getitem__(self, key: K) -> V:
        value: V = _DICT.__getitem__(self, key)
        if type(value) in FREEZERS:
            value = freeze(value)
            # Kept, so that a loop over event.data["rows"][i] copies `rows` once. The key exists: the dict is
            # not resized under somebody who iterates over it.
            _DICT.__setitem__(self, key, value)
        return value

    # CPython copies the storage of a dict subclass past `__getitem__` unless it has its own `__iter__`:
    # `{**mapping}`, `dict(mapping)` and `plain.update(mapping)` would hand out the emitter's nested dicts.
    def __iter__(self) -> Iterator[K]:
        return _DICT.__iter__(self)

    def get(self, key: K, default: Any = None, /) -> Any:
        """Return the value of `key`, or `default` as it was given."""
        value = _DICT.get(self, key, default)
        return self[key] if value is not default and type(value) in FREEZERS else value

    def values(self) -> dict_values[K, V]:
        """Return a view of the values."""
        self._wrap()
        return _DICT.values(self)

    def items(self) -> dict_items[K, V]:
        """Return a view of the pairs."""
        self._wrap()
        return _DICT.items(self)

    def copy(self) -> dict[K, V]:
        """Return a plain dict of the same items, to be changed; nested values stay read-only."""
        return dict(self)

    def __copy__(self) -> dict[K, V]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[K, V]:
        plain: dict[K, V] = _rebuild(self, lambda leaf: copy.deepcopy(leaf, memo), memo)
        return plain

    def __reduce__(self) -> tuple[type[ReadOnlyDict[K, V]], tuple[dict[K, V]]]:
        return type(self), (dict(_DICT.items(self)),)

    def _wrap(self) -> None:
        for key, value in _DICT.items(self):
            if type(value) in FREEZERS:
                _DICT.__setitem__(self, key, freeze(value))

    def _refuse(self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        msg = (
            "This mapping belongs to an event and is read-only. "
            "Copy it to change it: {**mapping, 'key': value}; "
            'a gate assigns the copy back: event.arguments = {**event.arguments, "limit": 10}.'
        )
        raise TypeError(msg)

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse
    update = _refuse


class ReadOnlyList(list[T]):
    """
    Hold a copy of a list that its readers cannot change.

    Equality, `len`, `in`, `repr`, `json.dumps` and `isinstance(value, list)` are those of a list; `pickle`
    gives a read-only one back. Whatever makes another list of it (`copy`, a slice, `+`, `[*items]`) gives a
    plain one that can be changed, with read-only items; `copy.deepcopy` gives plain dicts and lists all the
    way down. Reading from several threads is safe.

    Raises:
        TypeError: From every method that would change it.

    """

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [freeze(item) for item in _LIST.__getitem__(self, index)]
        item: T = _LIST.__getitem__(self, index)
        if type(item) in FREEZERS:
            item = freeze(item)
            _LIST.__setitem__(self, index, item)  # kept, as in ReadOnlyDict
        return item

    def __iter__(self) -> Iterator[T]:
        self._wrap()
        return _LIST.__iter__(self)

    def __reversed__(self) -> Iterator[T]:
        self._wrap()
        return _LIST.__reversed__(self)

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, list) else NotImplemented

    # `plain + items` copies the storage, so nothing of the emitter's may be left in it. The sum is left to
    # `plain`: this is asked for `plain += items` as well, which has to extend `plain` itself.
    def __radd__(self, other: Any) -> Any:
        self._wrap()
        return NotImplemented

    def __mul__(self, times: SupportsIndex) -> list[T]:
        return list(self) * times

    __rmul__ = __mul__

    def copy(self) -> list[T]:
        """Return a plain list of the same items, to be changed; nested values stay read-only."""
        return list(self)

    def __copy__(self) -> list[T]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[T]:
        plain: list[T] = _rebuild(self, lambda leaf: copy.deepcopy(leaf, memo), memo)
        return plain

    def __reduce__(self) -> tuple[type[ReadOnlyList[T]], tuple[list[T]]]:
        return type(self), (list(_LIST.__iter__(self)),)

    def _wrap(self) -> None:
        for index, item in enumerate(_LIST.__iter__(self)):
            if type(item) in FREEZERS:
                _LIST.__setitem__(self, index, freeze(item))

    def _refuse(self: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
        msg = (
            "This list belongs to an event and is read-only. Copy it to change it: [*items, item]; "
            "a gate assigns the copy back: event.messages = [*event.messages, message]."
        )
        raise TypeError(msg)

    __setitem__ = _refuse
    __delitem__ = _refuse
    __iadd__ = _refuse
    __imul__ = _refuse
    append = _refuse
    clear = _refuse
    extend = _refuse
    insert = _refuse
    pop = _refuse
    remove = _refuse
    reverse = _refuse
    sort = _refuse


def freeze(value: Any) -> Any:
    """
    Return a read-only copy of a dict or list, and anything else as it is.

    One level is copied; nested values are wrapped when they are read, so a cycle or any depth costs nothing.
    A dict is a plain one or the standard library's OrderedDict, defaultdict or Counter. A tuple is looked
    into, because what it holds could be changed. Other subclasses, and objects of any other kind, stay the
    very object they are.

    Args:
        value: What a handler is about to see.

    Returns:
        A ReadOnlyDict, a ReadOnlyList, a tuple of such, or `value` itself.

    """
    # `type(value)`, since a mock or a proxy may claim another class with `__class__`.
    return FREEZERS[type(value)](value) if type(value) in FREEZERS else value


def thaw(value: Any) -> Any:
    """
    Return `value` with plain dicts and lists of its own in place of every dict and list in it.

    Tuples are rebuilt around them. The rest is shared, not copied: a lock or a socket may be among it. Cycles
    stay cycles, and any depth is fine.

    Args:
        value: What a tool, say, is about to receive. It need not be read-only.

    """
    if type(value) not in _CONTAINERS:
        return value
    if type(value) in _PLAIN_DICTS:
        copied = dict(_DICT.items(value))
        # As arguments nearly always are: nothing inside is to be rebuilt.
        if _CONTAINERS.isdisjoint(map(type, copied.values())):
            return copied
    return _rebuild(value, _same, {})


def is_flat(value: Any) -> bool:
    """
    Tell whether a value is a read-only dict without dicts, lists or tuples in it: nobody can change it.
    """
    return value.__class__ is ReadOnlyDict and _CONTAINERS.isdisjoint(map(type, _DICT.values(value)))


def _freeze_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    for item in value:
        if type(item) in FREEZERS:
            return _map_tuple(value, freeze, {})
    return value


FREEZERS: dict[type, Callable[[Any], Any]] = {
    dict: ReadOnlyDict,
    list: ReadOnlyList,
    tuple: _freeze_tuple,
    OrderedDict: ReadOnlyDict,
    defaultdict: ReadOnlyDict,
    Counter: ReadOnlyDict,
}
_PLAIN_DICTS = frozenset({dict, ReadOnlyDict})
_DICTS = frozenset({dict, OrderedDict, defaultdict, Counter, ReadOnlyDict})
_LISTS = frozenset({list, ReadOnlyList})
_TUPLES = frozenset({tuple})
_CONTAINERS = _DICTS | _LISTS | _TUPLES


def _same(leaf: Any) -> Any:
    return leaf


def _map_tuple(
    root: tuple[Any, ...], convert: Callable[[Any], Any], done: dict[int, tuple[Any, ...]]
) -> tuple[Any, ...]:
    # A stack, not recursion: a tuple can be nested deeper than the interpreter's stack. `done`, by identity:
    # one that holds another twice, fifty levels deep, has 2**50 paths. An unchanged one stays what it is.
    stack = [root]
    while stack:
        top = stack[-1]
        inner: list[tuple[Any, ...]] = [
            item for item in top if type(item) in _TUPLES and id(item) not in done
        ]
        if inner:
            stack.extend(inner)
            continue
        stack.pop()
        items = tuple([done[id(item)] if type(item) in _TUPLES else convert(item) for item in top])
        same = all(new is old for new, old in zip(items, top, strict=True))
        done[id(top)] = top if same else items
    return done[id(root)]


def _rebuild(root: Any, leaf: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    # `memo` has the form of deepcopy's: id of the original to its copy. A container is entered there while it
    # is still empty, and filled later from `unfilled`: so cycles close, and depth needs no stack.
    unfilled: list[tuple[Any, Any]] = []
    # The originals are kept where deepcopy keeps them, for as long as their ids count: a reader on another
    # thread may replace one by its read-only copy, and what is freed gives its id to the next object.
    kept: list[Any] = memo.setdefault(id(memo), [])

    def convert(value: Any) -> Any:
        if type(value) not in _CONTAINERS:
            return leaf(value)
        if id(value) in memo:
            return memo[id(value)]
        kept.append(value)
        if type(value) in _TUPLES:
            return _map_tuple(value, convert, memo)  # noqa: F821 - deleted at the end only
        shell: Any = {} if type(value) in _DICTS else []
        memo[id(value)] = shell
        unfilled.append((value, shell))
        return shell

    result = convert(root)
    while unfilled:
        source, target = unfilled.pop()
        if type(source) in _LISTS:
            target.extend([convert(item) for item in _LIST.__iter__(source)])
        else:
            # An OrderedDict keeps an order of its own, which only its own method knows.
            pairs = source.items() if type(source) in FREEZERS else _DICT.items(source)
            for key, item in list(pairs):
                target[leaf(key)] = convert(item)
    # It holds itself, and all that it has seen.
    del convert
    return result
