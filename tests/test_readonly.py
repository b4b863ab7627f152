"""
Read-only dicts and lists: what readers get, what writers are told, and that the source never changes.
"""

# ruff: noqa: C414, C416, RUF005, RUF017 -- the spellings that these rules would unify are different ways to read

from __future__ import annotations

import collections
import copy
import json
import operator
import pickle
import random
import threading
import types
from collections import Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from typing import Any
from unittest import mock

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from eventbus._readonly import ReadOnlyDict, ReadOnlyList, freeze, thaw


def keywords(**kwargs):
    return kwargs


def arguments(*args):
    return list(args)


def updated(mapping):
    plain = {}
    plain.update(mapping)
    return plain


def merged_in_place(mapping):
    plain = {}
    plain |= mapping
    return plain


def matched(mapping):
    match mapping:
        case {**rest}:
            return rest


def matched_keys(mapping):
    reached = {}
    for name in mapping:
        key = types.SimpleNamespace(name=name)
        match mapping:
            case {key.name: value}:
                reached[name] = value
    return reached


DICT_READERS = {
    "[]": lambda d: {key: d[key] for key in d},
    "get": lambda d: {key: d.get(key) for key in d.keys()},
    "get default": lambda d: {key: d.get(key, {}) for key in d},
    "items": lambda d: dict(list(d.items())),
    "reversed items": lambda d: dict(reversed(d.items())),
    "values": lambda d: dict(zip(d, d.values(), strict=True)),
    "reversed values": lambda d: dict(zip(reversed(d), reversed(d.values()), strict=True)),
    "view.mapping": lambda d: {key: d.keys().mapping[key] for key in d},
    "dict()": dict,
    "{**}": lambda d: {**d},
    "{**} twice": lambda d: {**d, **d},
    "f(**)": lambda d: keywords(**d),
    "update": updated,
    "|=": merged_in_place,
    "d | {}": lambda d: d | {},
    "{} | d": lambda d: {} | d,
    "d | d": lambda d: d | d,
    "copy": lambda d: d.copy(),
    "copy.copy": copy.copy,
    "match": matched,
    "match keys": matched_keys,
    "itemgetter": lambda d: {key: operator.itemgetter(key)(d) for key in d},
    "OrderedDict": OrderedDict,
    "defaultdict": lambda d: defaultdict(None, d),
    "UserDict": lambda d: UserDict(d).data,
    "ChainMap": lambda d: dict(collections.ChainMap(d)),
    "MappingProxyType": lambda d: dict(types.MappingProxyType(d)),
    "SimpleNamespace": lambda d: dict(vars(types.SimpleNamespace(**d))),
    "ReadOnlyDict": ReadOnlyDict,
    "pickle": lambda d: pickle.loads(pickle.dumps(d)),
    "deepcopy": copy.deepcopy,
    "thaw": thaw,
}


def extended(items):
    plain = []
    plain.extend(items)
    return plain


def added_in_place(items):
    plain = []
    plain += items
    return plain


def slice_assigned(items):
    plain = [None]
    plain[:] = items
    return plain


def unpacked(items):
    *rest, last = items
    return [*rest, last]


def matched_items(items):
    match items:
        case [first, *rest]:
            return [first, *rest]
    return []


LIST_READERS = {
    "[]": lambda x: [x[index] for index in range(len(x))],
    "[-]": lambda x: [x[index] for index in range(-len(x), 0)],
    "[:]": lambda x: x[:],
    "[::-1]": lambda x: x[::-1][::-1],
    "iteration": lambda x: [item for item in x],
    "reversed": lambda x: list(reversed(x))[::-1],
    "list()": list,
    "tuple()": lambda x: list(tuple(x)),
    "[*]": lambda x: [*x],
    "f(*)": lambda x: arguments(*x),
    "extend": extended,
    "+=": added_in_place,
    "[:] =": slice_assigned,
    "x + []": lambda x: x + [],
    "[] + x": lambda x: [] + x,
    "x + x": lambda x: (x + x)[len(x) :],
    "sum": lambda x: sum([x], []),
    "x * 1": lambda x: x * 1,
    "1 * x": lambda x: 1 * x,
    "copy": lambda x: x.copy(),
    "copy.copy": copy.copy,
    "unpacking": lambda x: unpacked(x) if x else [],
    "match": matched_items,
    "enumerate": lambda x: [item for _, item in enumerate(x)],
    "zip": lambda x: [item for (item,) in zip(x, strict=True)],
    "sorted": lambda x: sorted(x, key=lambda _: 0),
    "deque": lambda x: list(deque(x)),
    "itemgetter": lambda x: [operator.itemgetter(index)(x) for index in range(len(x))],
    "ReadOnlyList": ReadOnlyList,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
    "thaw": thaw,
}

DICT_WRITERS = {
    "[]=": lambda d: operator.setitem(d, "a", 1),
    "del": lambda d: operator.delitem(d, "a"),
    "|=": lambda d: operator.ior(d, {"a": 1}),
    "clear": lambda d: d.clear(),
    "pop": lambda d: d.pop("a"),
    "pop with default": lambda d: d.pop("a", None),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: d.setdefault("a", 1),
    "update": lambda d: d.update({"a": 1}),
    "update by keyword": lambda d: d.update(a=1),
}

LIST_WRITERS = {
    "[]=": lambda x: operator.setitem(x, 0, 1),
    "[:]=": lambda x: operator.setitem(x, slice(None), []),
    "del": lambda x: operator.delitem(x, 0),
    "+=": lambda x: operator.iadd(x, [1]),
    "*=": lambda x: operator.imul(x, 2),
    "append": lambda x: x.append(1),
    "clear": lambda x: x.clear(),
    "extend": lambda x: x.extend([1]),
    "insert": lambda x: x.insert(0, 1),
    "pop": lambda x: x.pop(),
    "remove": lambda x: x.remove(1),
    "reverse": lambda x: x.reverse(),
    "shuffle": lambda x: random.shuffle(x),
    "sort": lambda x: x.sort(key=str, reverse=True),
}


def stored(value):
    """Return what `value` holds, past the methods of its own class."""
    if isinstance(value, dict):
        return list(dict.values(value))
    return list(tuple.__iter__(value) if isinstance(value, tuple) else list.__iter__(value))


def mutables(value):
    """Return the ids of all dicts and lists in a value."""
    found = set()
    pending = [value]
    while pending:
        top = pending.pop()
        if isinstance(top, dict | list | tuple):
            if not isinstance(top, tuple):
                found.add(id(top))
            pending.extend(stored(top))
    return found


def reachable(value, read_dict, read_list):
    """Return the ids of all dicts and lists that a reader gets to see, who reads every level so."""
    found = set()
    kept = []  # so that no id is used twice
    pending = [value]
    while pending:
        top = pending.pop()
        if not isinstance(top, dict | list | tuple):
            continue
        kept.append(top)
        if not isinstance(top, tuple):
            found.add(id(top))
            top = read_dict(top) if isinstance(top, dict) else read_list(top)
            kept.append(top)
            found.add(id(top))
        pending.extend(stored(top))
    return found


def nested(depth):
    """Return a dict in a list in a tuple, and so on, `depth` times."""
    value = {"leaf": 1}
    for _ in range(depth):
        value = {"inner": [(value,)]}
    return value


class TestReading:
    """Every way to read gives equal values, and never the emitter's own."""

    @given(source=strategies.json_objects())
    def test_every_way_to_read_a_dict_gives_equal_values(self, source):
        """A reader of a mapping sees what the emitter passed."""
        assert [] == [name for name, read in DICT_READERS.items() if source != read(freeze(source))]

    @given(source=strategies.json_arrays())
    def test_every_way_to_read_a_list_gives_equal_values(self, source):
        """A reader of a list sees what the emitter passed."""
        assert [] == [name for name, read in LIST_READERS.items() if source != read(freeze(source))]

    @given(
        source=st.dictionaries(strategies.text(max_size=3), strategies.containers(), min_size=1, max_size=3)
    )
    def test_no_way_to_read_a_dict_reaches_the_emitters_own(self, source):
        """Whatever a reader does to a mapping, at any depth, it holds no dict or list of the emitter."""
        own = mutables(source)
        leaks = [name for name, read in DICT_READERS.items() if own & reachable(freeze(source), read, list)]
        assert [] == leaks

    @given(source=st.lists(strategies.containers(), min_size=1, max_size=3))
    def test_no_way_to_read_a_list_reaches_the_emitters_own(self, source):
        """Whatever a reader does to a list, at any depth, it holds no dict or list of the emitter."""
        own = mutables(source)
        leaks = [name for name, read in LIST_READERS.items() if own & reachable(freeze(source), dict, read)]
        assert [] == leaks

    def test_a_nested_mapping_unpacked_is_still_read_only(self):
        """The copy that `**` makes can be changed, what is nested in it cannot."""
        source = {"filters": {"x": 0}}
        with pytest.raises(TypeError, match="read-only"):
            {**freeze(source)}["filters"]["x"] = 1
        assert source == {"filters": {"x": 0}}

    def test_what_was_read_once_is_kept(self):
        """Reading a nested value twice gives the same object, so that a loop over it copies it once."""
        mapping, items = freeze({"rows": [1]}), freeze([{"a": 1}])
        assert mapping["rows"] is mapping["rows"] is mapping.get("rows")
        assert items[0] is items[0] is next(iter(items))

    def test_a_default_comes_back_as_it_was_given(self):
        """`get` hands a missing key's default back, and does not wrap it."""
        default = {}
        assert default is freeze({}).get("missing", default)
        assert freeze({}).get("missing") is None

    def test_a_missing_key_and_index_raise_as_usual(self):
        """A missing key is a KeyError with the key, a missing index an IndexError."""
        with pytest.raises(KeyError, match="missing"):
            freeze({})["missing"]
        with pytest.raises(IndexError):
            freeze([])[0]

    def test_adding_in_place_extends_the_plain_list_itself(self):
        """`plain += items` extends the list that others may hold, as it does with any list."""
        plain = [1]
        alias = plain
        plain += freeze([2, {"a": 1}])
        assert alias is plain
        assert [1, 2, {"a": 1}] == alias

    def test_adding_what_is_no_list_fails_as_usual(self):
        """A sum with a tuple is the TypeError that a list gives."""
        with pytest.raises(TypeError, match="unsupported operand"):
            freeze([1]) + (2,)
        with pytest.raises(TypeError):
            (2,) + freeze([1])

    def test_what_copies_give_can_be_changed(self):
        """Copies of one level are plain dicts and lists."""
        for plain in (freeze({"a": 1}).copy(), copy.copy(freeze({"a": 1})), freeze({"a": 1}) | {}):
            assert dict is type(plain)
        items = freeze([1])
        for plain in (items.copy(), copy.copy(items), items[:], items + [], [] + items, items * 1):
            assert list is type(plain)

    def test_they_are_dicts_and_lists_to_their_readers(self):
        """`isinstance`, `len`, `in`, `index`, `count`, truth and views answer as for a dict and a list."""
        mapping, items = freeze({"a": {"b": 1}}), freeze([{"b": 1}, 2, 2])
        assert isinstance(mapping, dict)
        assert isinstance(items, list)
        assert (1, 3) == (len(mapping), len(items))
        assert "a" in mapping
        assert {"b": 1} in items
        assert {"b": 1} in mapping.values()
        assert ("a", {"b": 1}) in mapping.items()
        assert (0, 2) == (items.index({"b": 1}), items.count(2))
        assert not freeze({})
        assert not freeze([])

    def test_they_are_unhashable(self):
        """As a dict and a list, they can be no key."""
        for value in (freeze({}), freeze([])):
            with pytest.raises(TypeError, match="unhashable"):
                hash(value)

    @given(source=strategies.json_values())
    def test_repr_and_equality_are_those_of_the_source(self, source):
        """Nothing tells a reader who prints or compares that this is no plain value, on either side."""
        frozen = freeze(source)
        assert repr(source) == repr(frozen)
        assert source == frozen
        assert frozen == source
        assert frozen == freeze(source)

    def test_threads_that_read_at_once_see_equal_values(self):
        """Eight threads reading nested values for the first time get equal ones, and no error."""
        source = {str(n): {"rows": [{"n": n}] * 3} for n in range(300)}
        mapping = freeze(source)
        start = threading.Barrier(8)
        seen = []

        def read(how):
            start.wait()
            seen.append(how(mapping))

        ways = [DICT_READERS[name] for name in ("[]", "items", "{**}", "values")] * 2
        threads = [threading.Thread(target=read, args=(way,)) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [source] * 8 == seen


class TestWriting:
    """Every way to write is a TypeError that names the fix, and changes nothing."""

    @pytest.mark.parametrize("name", DICT_WRITERS)
    def test_a_dict_refuses(self, name):
        """A mutator of dict raises, and neither the copy nor its source is changed."""
        source = {"a": 0, "b": [1]}
        mapping = freeze(source)
        with pytest.raises(TypeError, match=r"event\.arguments = \{\*\*event\.arguments, \"limit\": 10\}"):
            DICT_WRITERS[name](mapping)
        assert {"a": 0, "b": [1]} == mapping == source

    @pytest.mark.parametrize("name", LIST_WRITERS)
    def test_a_list_refuses(self, name):
        """A mutator of list raises, and neither the copy nor its source is changed."""
        source = [1, {"a": 2}, 3]
        items = freeze(source)
        with pytest.raises(TypeError, match=r"event\.messages = \[\*event\.messages, message\]"):
            LIST_WRITERS[name](items)
        assert [1, {"a": 2}, 3] == items == source

    def test_every_mutator_is_covered(self):
        """No public method of dict and list that could change them is left as it was."""
        assert {"fromkeys", "keys"} == {
            name for name in vars(dict) if not name.startswith("_") and name not in vars(ReadOnlyDict)
        }
        assert {"count", "index"} == {
            name for name in vars(list) if not name.startswith("_") and name not in vars(ReadOnlyList)
        }

    def test_they_take_no_attributes(self):
        """There is no instance dict to leave something in."""
        for value in (freeze({}), freeze([])):
            with pytest.raises(AttributeError):
                value.extra = 1

    @given(source=strategies.json_objects())
    def test_changing_a_copy_of_every_depth_leaves_the_source_alone(self, source):
        """What `thaw` and `deepcopy` give can be emptied without a trace in the source or the frozen copy."""
        before = copy.deepcopy(source)
        frozen = freeze(source)
        for plain in (thaw(frozen), copy.deepcopy(frozen)):
            pending = [plain]
            while pending:
                top = pending.pop()
                if isinstance(top, dict | list):
                    pending.extend(stored(top))
                    top.clear()
        assert before == source == frozen


class TestEncoding:
    """What encodes a dict encodes these, to the same bytes."""

    @given(source=strategies.json_values())
    def test_json_is_the_same(self, source):
        """`json.dumps` gives what it gives for the source, whatever its options."""
        for options in ({}, {"indent": 2}, {"sort_keys": True}, {"ensure_ascii": False}):
            assert json.dumps(source, **options) == json.dumps(freeze(source), **options)

    @given(source=strategies.json_values())
    def test_json_is_the_same_from_the_pure_encoder(self, source):
        """The encoder in Python, which runs where the C one is missing, agrees."""
        with mock.patch("json.encoder.c_make_encoder", None):
            assert json.dumps(source) == json.dumps(freeze(source))

    @given(source=strategies.containers())
    def test_a_pickle_comes_back_equal_and_read_only(self, source):
        """Every protocol of pickle gives an equal value of the same class."""
        frozen = freeze(source)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(frozen, protocol))
            assert frozen == again
            assert type(frozen) is type(again)

    def test_a_pickle_of_values_read_before_comes_back_equal(self):
        """Reading nested values first makes no difference to the pickle."""
        frozen = freeze({"a": {"b": [1]}})
        assert frozen["a"]["b"] == [1]
        assert frozen == pickle.loads(pickle.dumps(frozen))


class TestFreeze:
    """What becomes read-only, and what stays as it is."""

    @pytest.mark.parametrize(
        "source",
        [{"a": 1}, OrderedDict(a=1), defaultdict(list, a=1), Counter(a=1)],
        ids=lambda source: type(source).__name__,
    )
    def test_the_dicts_of_the_standard_library_become_read_only_dicts(self, source):
        """A dict, OrderedDict, defaultdict or Counter is copied into a read-only dict."""
        frozen = freeze(source)
        assert ReadOnlyDict is type(frozen)
        assert source == frozen

    def test_an_ordered_dict_keeps_its_own_order(self):
        """The order that `move_to_end` made is the order of the read-only dict, and of its thawed copy."""
        source = OrderedDict(a=1, b=2)
        source.move_to_end("a")
        assert ["b", "a"] == list(freeze(source))
        assert ["b", "a"] == list(thaw(source))

    def test_a_defaultdict_makes_no_values_any_more(self):
        """A read of a missing key leaves nothing behind: it is a KeyError."""
        with pytest.raises(KeyError):
            freeze(defaultdict(list))["missing"]

    def test_a_list_becomes_a_read_only_list(self):
        """A list is copied into a read-only one."""
        assert ReadOnlyList is type(freeze([1]))

    def test_the_copy_does_not_follow_its_source(self):
        """A key that the emitter sets afterwards does not show in the event."""
        source = {"a": 1}
        frozen = freeze(source)
        source["b"] = 2
        assert {"a": 1} == frozen

    def test_a_tuple_is_frozen_inside(self):
        """A tuple stays a tuple, with what it holds read-only, at any depth."""
        frozen = freeze((1, ([2], {"a": 3})))
        assert (1, ([2], {"a": 3})) == frozen
        assert (ReadOnlyList, ReadOnlyDict) == (type(frozen[1][0]), type(frozen[1][1]))

    def test_a_tuple_of_nothing_to_freeze_is_returned_itself(self):
        """Where nothing could be changed, nothing is copied."""
        for source in ((), (1, "a"), (1, (2, ()))):
            assert source is freeze(source)

    @given(source=strategies.containers())
    def test_what_is_read_only_already_is_returned_itself(self, source):
        """Freezing twice is freezing once."""
        frozen = freeze(source)
        assert frozen is freeze(frozen)

    @pytest.mark.parametrize(
        "source",
        [
            None,
            1,
            "text",
            b"bytes",
            {1},
            object(),
            threading.Lock(),
            types.MappingProxyType({"a": []}),
            UserDict(a=[]),
            type("Own", (dict,), {})(a=[]),
            type("Items", (list,), {})([[]]),
            namedtuple("Pair", "a b")([], {}),
            mock.MagicMock(spec=dict),
        ],
        ids=lambda source: type(source).__name__,
    )
    def test_everything_else_is_returned_itself(self, source):
        """Scalars, foreign subclasses and objects stay themselves, also one that claims to be a dict."""
        assert source is freeze(source)
        assert source is thaw(source)
        assert source is freeze({"value": source})["value"]


class TestThaw:
    """Plain dicts and lists of one's own, all the way down."""

    @pytest.mark.parametrize("plain", [thaw, copy.deepcopy], ids=["thaw", "deepcopy"])
    @given(source=strategies.containers())
    def test_all_is_plain_and_equal(self, plain, source):
        """Every dict and list in the result is a plain one, and all of it equals the source."""
        result = plain(freeze({"source": source}))["source"]
        assert source == result
        pending = [result]
        while pending:
            top = pending.pop()
            if isinstance(top, dict | list | tuple):
                assert type(top) in (dict, list, tuple)
                pending.extend(stored(top))

    @given(source=strategies.containers())
    def test_it_takes_what_was_never_frozen(self, source):
        """A plain value is rebuilt too, so that the result is the caller's own."""
        result = thaw(source)
        assert source == result
        assert set() == mutables(source) & mutables(result)

    def test_leaves_are_shared_by_thaw_and_copied_by_deepcopy(self):
        """`thaw` copies no object but dicts, lists and tuples; `deepcopy` copies what it always copies."""
        leaf = {1}
        frozen = freeze({"leaf": leaf, ("key",): [leaf]})
        assert leaf is thaw(frozen)["leaf"]
        deep = copy.deepcopy(frozen)
        assert leaf is not deep["leaf"]
        assert deep["leaf"] is deep["key",][0]

    def test_one_list_in_two_places_stays_one(self):
        """What was shared inside the source is shared inside the result."""
        shared = [1]
        for plain in (thaw, copy.deepcopy):
            result = plain(freeze({"a": shared, "b": (shared,)}))
            assert result["a"] is result["b"][0]

    def test_deepcopy_within_a_larger_copy_keeps_what_is_shared(self):
        """A read-only value held twice by an outer object is copied once."""
        frozen = freeze({"a": []})
        first, second = copy.deepcopy([frozen, frozen])
        assert first is second


class TestHostileShapes:
    """Cycles, depth and breadth neither hang nor overflow the stack."""

    def test_a_cycle_can_be_frozen_read_and_printed(self):
        """Each step into a cycle gives a read-only value, as far as one goes."""
        source = {}
        source["self"] = source
        source["tuple"] = (source, [source])
        frozen = freeze(source)
        assert ReadOnlyDict is type(frozen["self"]["tuple"][1][0]["self"])
        assert "..." in repr(frozen)
        assert pickle.loads(pickle.dumps(frozen))["self"].keys() == frozen.keys()

    @pytest.mark.parametrize("plain", [thaw, copy.deepcopy], ids=["thaw", "deepcopy"])
    def test_a_cycle_stays_a_cycle(self, plain):
        """A plain copy of a cycle closes where the source does, through dicts, lists and tuples."""
        source = {"list": []}
        source["list"].append((source,))
        inner = plain(freeze(source))["list"][0][0]
        assert dict is type(inner)
        assert inner is inner["list"][0][0]

    @pytest.mark.parametrize("plain", [thaw, copy.deepcopy], ids=["thaw", "deepcopy"])
    def test_depth_needs_no_stack(self, plain):
        """Twenty thousand levels are frozen and copied plain."""
        result = plain(freeze(nested(20_000)))
        levels = 0
        while "inner" in result:
            result = result["inner"][0][0]
            levels += 1
        assert 20_000 == levels

    def test_a_deep_tuple_needs_no_stack(self):
        """Twenty thousand tuples around a list are frozen and thawed."""
        source: Any = ([],)
        for _ in range(20_000):
            source = (source,)
        for result in (freeze(source), thaw(source)):
            while isinstance(result, tuple):
                (result,) = result
            assert [] == result

    def test_a_tuple_held_twice_at_every_level_is_visited_once(self):
        """A tuple with 2**64 paths through it is frozen and thawed as the 64 tuples that it is."""
        source: Any = ([],)
        for _ in range(64):
            source = (source, source)
        for result in (freeze(source), thaw(source)):
            assert result[0] is result[1]
