"""
The hypothesis strategies that several test modules share.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, defaultdict
from typing import Any

from hypothesis import strategies as st

#: Characters that break lines, terminals, encoders or quoting.
HOSTILE = (
    "\x00\x07\x08\t\n\x0b\x0c\r\x1b\x1f\x7f"  # C0, ESC and DEL
    "\x80\x85\x9b\x9d\xa0\xad"  # C1, NEL, CSI, OSC, no-break space, soft hyphen
    "\u2028\u2029\u200b\u200e\u202e\u2066\ufeff\ufffe\uffff"  # separators, invisible, bidirectional, none
    "\ud800\udbff\udc80\udfff"  # lone surrogates
    "\U0001f600\U000e0001\U0010ffff"
    " \"'=\\{}[](),:;%$`…"
)


def text(*, min_size: int = 0, max_size: int = 12) -> st.SearchStrategy[str]:
    """Return texts of any characters, the hostile ones often, lone surrogates among them."""
    characters = st.one_of(st.sampled_from(HOSTILE), st.characters(exclude_categories=()))
    return st.text(characters, min_size=min_size, max_size=max_size)


def scalars() -> st.SearchStrategy[Any]:
    """Return what JSON calls scalars, integers beyond 64 bits included; no NaN, which equals nothing."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([2**63, 2**70, -(2**70)]),
        st.floats(allow_nan=False, allow_infinity=False),
        text(),
    )


def json_values(*, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Return nested dicts (of text keys) and lists of scalars."""
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(text(max_size=5), inner, max_size=4),
        ),
        max_leaves=max_leaves,
    )


def json_objects(*, max_leaves: int = 20) -> st.SearchStrategy[dict[str, Any]]:
    """Return nested JSON values that are an object at the outermost level."""
    return st.dictionaries(text(max_size=5), json_values(max_leaves=max_leaves), max_size=4)


def json_arrays(*, max_leaves: int = 20) -> st.SearchStrategy[list[Any]]:
    """Return nested JSON values that are an array at the outermost level."""
    return st.lists(json_values(max_leaves=max_leaves), max_size=4)


def containers(*, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Return nested dicts, OrderedDicts, defaultdicts, Counters, lists and tuples of scalars."""

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        mappings = st.dictionaries(text(max_size=5), inner, max_size=4)
        return st.one_of(
            mappings,
            mappings.map(OrderedDict),
            mappings.map(functools.partial(defaultdict, list)),
            st.dictionaries(text(max_size=5), st.integers(), max_size=4).map(Counter),
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
        )

    return st.recursive(scalars(), grow, max_leaves=max_leaves)
