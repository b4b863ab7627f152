"""
What searching for a user's pattern may cost: a bound on its steps, and a search in windows that keeps to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, Final, cast

from ._detectors import Find, Span

WINDOW: Final = 512
"""Characters that a user's pattern is given at a time."""

OVERLAP: Final = 128
"""Characters of a window that the next one has, too: a match of at most this length is found anywhere."""

MOST_STEPS: Final = 8 * WINDOW**3
"""What a user's pattern may cost in one window, at most."""


def steps(pattern: re.Pattern[str], size: int) -> int:
    """
    Return a bound on the steps of searching for a pattern in a text of `size` characters.

    It counts what backtracking could try at worst, for any text. What it does not know counts as without end.

    Args:
        pattern: A compiled pattern.
        size: The length of the text, in characters.

    Returns:
        The number, at most 10**30.
    """
    parser = cast("Any", re)._parser
    _, work = _cost(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG), size)
    return min(size * work, _ENDLESS)


_ENDLESS: Final = 10**30
_ONE_STEP: Final = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "CATEGORY", "FAILURE"})


def _cost(items: Any, size: int) -> tuple[int, int]:
    # In how many ways the items can match at one place, and how many steps it takes to try them all.
    ways, work = 1, 1
    parts = list(items)
    for (code, argument), following in zip_longest(parts, parts[1:]):
        more_ways, more_work = _cost_of_one(str(code), argument, size)
        if str(code) in {"MAX_REPEAT", "MIN_REPEAT"} and _ends_at(argument[2], following):
            # Where it goes on earlier, what follows does not match: that leaves one way.
            more_ways, more_work = 1, 2 * more_work
        work = min(work + ways * more_work, _ENDLESS)
        ways = min(ways * more_ways, _ENDLESS)
    return ways, work


def _ends_at(repeated: Any, following: Any) -> bool:
    # Whether one character is repeated, and the literal that follows is never that character.
    if following is None or str(following[0]) != "LITERAL" or len(repeated) != 1:
        return False
    code, argument = repeated[0]
    characters = [(code, argument)] if str(code) == "LITERAL" else argument if str(code) == "IN" else None
    if characters is None:
        return False
    literal = chr(following[1])
    return not any(_may_be(str(kind), value, literal) for kind, value in characters)


def _may_be(kind: str, value: Any, literal: str) -> bool:
    # In any case of letters: whether that counts, the pattern's flags say, which may change within it.
    forms = {literal, literal.lower(), literal.upper(), literal.swapcase()}
    if kind == "LITERAL":
        return not forms.isdisjoint({chr(value), chr(value).lower(), chr(value).upper()})
    if kind == "RANGE":
        return literal.isalpha() or value[0] <= ord(literal) <= value[1]
    if kind == "CATEGORY" and str(value) in _CATEGORIES:
        return _CATEGORIES[str(value)].match(literal) is not None
    return True


_CATEGORIES: Final = {
    "CATEGORY_WORD": re.compile(r"\w"),
    "CATEGORY_DIGIT": re.compile(r"\d"),
    "CATEGORY_SPACE": re.compile(r"\s"),
}


def _cost_of_one(code: str, argument: Any, size: int) -> tuple[int, int]:
    if code in _ONE_STEP:
        return 1, 1
    if code == "BRANCH":
        costs = [_cost(branch, size) for branch in argument[1]]
        return sum(ways for ways, _ in costs), sum(work for _, work in costs)
    if code == "SUBPATTERN":
        return _cost(argument[-1], size)
    if code == "ATOMIC_GROUP":
        return 1, _cost(argument, size)[1]
    if code in {"ASSERT", "ASSERT_NOT"}:
        return 1, _cost(argument[1], size)[1]
    if code == "GROUPREF":
        return 1, size
    if code == "GROUPREF_EXISTS":
        costs = [_cost(branch, size) for branch in argument[1:] if branch is not None]
        return sum(ways for ways, _ in costs) + 1, sum(work for _, work in costs) + 1
    if code in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        least, most, inner = argument
        return _cost_of_repeat(code, least, min(int(most), max(size, least)), _cost(inner, size))
    return _ENDLESS, _ENDLESS


def _cost_of_repeat(code: str, least: int, most: int, inner: tuple[int, int]) -> tuple[int, int]:
    ways, work = inner
    if code == "POSSESSIVE_REPEAT":
        return 1, min(1 + most * work, _ENDLESS)
    if ways == 1:
        return most - least + 1, min(1 + most * work, _ENDLESS)
    if most > 100:
        return _ENDLESS, _ENDLESS
    tried = sum(min(ways**count, _ENDLESS) for count in range(most))
    outcomes = sum(min(ways**count, _ENDLESS) for count in range(least, most + 1))
    return min(outcomes, _ENDLESS), min(1 + tried * work, _ENDLESS)


def windowed(pattern: re.Pattern[str]) -> Find:
    """
    Return what searches for a pattern window by window, so that its cost grows with the text's length only.
    """

    def find(text: str) -> Iterable[Span]:
        size = len(text)
        done = start = 0
        while True:
            stop = min(start + WINDOW, size)
            following = stop - OVERLAP
            for match in pattern.finditer(text, max(start, done), stop):
                # At the window's end an anchor holds that may not hold in the text; the next one will tell.
                if match.end() == stop < size and match.start() >= following:
                    continue
                if match.end() > match.start():
                    yield match.span()
                    done = match.end()
            if stop == size:
                return
            start = following

    return find
