"""
What finds one kind of thing in a text and answers its places: a detector, and how it reads what is not ASCII.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias, cast

import attrs

Span: TypeAlias = tuple[int, int]
Find: TypeAlias = Callable[[str], Iterable[Span]]

PROMPT: Final = "prompt"
ARGUMENTS: Final = "arguments"
RESULT: Final = "result"
PLACES: Final = frozenset({PROMPT, ARGUMENTS, RESULT})


def _places(where: Iterable[str]) -> frozenset[str]:
    places = frozenset({where} if isinstance(where, str) else where)
    if not places or not places <= PLACES:
        msg = f"`where` must name some of {', '.join(sorted(PLACES))}, not {where!r}."
        raise ValueError(msg)
    return places


@attrs.frozen
class Detector:
    """
    Finds one kind of thing in a text.

    Attributes:
        find: Takes a text and returns spans, as pairs of start and end. It may be called on any thread.
        where: Where it is asked: in "prompt", in "arguments", in "result"; by default in all of them.
        stable: Whether it always finds the same in the same text, as patterns do: what it found nothing in
            is not looked through again.
    """

    find: Find
    where: frozenset[str] = attrs.field(default=PLACES, converter=_places)
    stable: bool = False

    def spans(self, text: str) -> list[Span]:
        """
        Return what it finds in a text, in order.

        Raises:
            TypeError: If `find` answers anything but pairs of ints within the text, the start before the end.
        """
        found: list[Span] = []
        for span in self.find(text):
            # A user's function may answer anything.
            pair: Any = span
            if not isinstance(pair, tuple) or len(cast("Any", pair)) != 2:
                _refuse_span(self.find, cast("object", pair))
            start, end = cast("Any", pair)
            if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
                _refuse_span(self.find, cast("object", pair))
            found.append((start, end))
        return sorted(found)


def _refuse_span(find: object, span: object) -> None:
    msg = f"{find!r} must answer pairs (start, end) of places in the text, not {span!r}."
    raise TypeError(msg)


_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_LOOKALIKES: Final = re.compile("[\u00a0\u2000-\u200a\u2010-\u2015\u202f\u205f\u2212\u3000\uff01-\uff5e]")
_MEANT: Final = {
    **dict.fromkeys(map(chr, [0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000]), " "),
    **dict.fromkeys(map(chr, [*range(0x2010, 0x2016), 0x2212]), "-"),
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
}


def as_seen(find: Find) -> Find:
    # A detector of ASCII reads a text as people see it: without what is not seen, other spaces, dashes and
    # full-width letters as the plain ones.
    def findas_seen(text: str) -> Iterable[Span]:
        if text.isascii():
            return find(text)
        plain = _LOOKALIKES.sub(lambda match: _MEANT[match[0]], text)
        left_out = [match.start() - count for count, match in enumerate(_INVISIBLE.finditer(plain))]
        if not left_out:
            return find(plain)
        spans = find(_INVISIBLE.sub("", plain))
        return [
            (start + bisect_right(left_out, start), end + bisect_right(left_out, end - 1))
            for start, end in spans
        ]

    return findas_seen


known_patterns: list[re.Pattern[str]] = []
"""All that the default detectors search for; a test bounds their steps."""


def known(source: str, flags: int = 0) -> re.Pattern[str]:
    pattern = re.compile(source, flags)
    known_patterns.append(pattern)
    return pattern
