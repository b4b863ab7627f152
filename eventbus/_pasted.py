"""
What is pasted where a run's id is asked for: an id, its beginning, or a line of a log and what is around it.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from ._lines import parse_line

WORDS: Final = 64
"""How many words of a text are tried as ids, and how many times in it as the beginning of a line of ours."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*[A-Za-z]")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
_ESCAPED: Final = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[tnr])")
_WORD: Final = re.compile(r"[^\s\"'=,;|()\[\]{}<>]+")
_ID_KEYS: Final = ("cid", "correlation_id")
"""What the id is called in the log's JSON, and in that of the commands."""


class Pasted(NamedTuple):
    """
    What a text may mean.

    Attributes:
        ids: Whole ids, the likeliest first.
        beginning: What an id may begin with; None if the text is a line without an id.
        words: What may be an id if nothing else is; empty if the text says which part of it is one.
    """

    ids: list[str]
    beginning: str | None
    words: list[str]


def read_pasted(text: str) -> Pasted:
    """
    Tell which ids a text may mean.

    Args:
        text: An id or the beginning of one, quoted or not; a line of the log, plain or JSON, or of `tail
            --json`, with colours and with whatever a collector has put before it; or any text that has an id
            among its words, as the lines of an application's own log do.

    Returns:
        The ids, none of them looked up; the text itself is the first.
    """
    bare = _COLOUR.sub("", text).strip()
    told = list(_ids_of_line(bare))
    known = [cid for cid in told if cid is not None]
    if told:
        return Pasted([text, *known], known[0] if known else None, [])
    unquoted = _decoded(bare, 0) if bare.startswith('"') else None
    meant = unquoted if isinstance(unquoted, str) else bare
    words = _WORD.findall(bare)[:WORDS]
    # The commands show what cannot be printed as Python spells it.
    shown = _ESCAPED.sub(lambda found: found[0].encode().decode("unicode_escape"), meant)
    return Pasted(list(dict.fromkeys([text, bare, meant, shown])), meant, words)


def _ids_of_line(text: str) -> list[str | None]:
    times = [found.start() for found in islice(_TIME.finditer(text), WORDS)]
    brace = text.find("{")
    # Within a line of ours an object is data.
    if brace >= 0 and brace < min(times, default=len(text)):
        told = _decoded(text, brace)
        said = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        ids = [said[key] for key in _ID_KEYS if isinstance(said.get(key, 0), str | None)]
        if ids:
            return ids
    found: list[str | None] = []
    for start in times:
        with suppress(ValueError):
            found.append(parse_line(text[start:]).cid)
    return found


def _decoded(text: str, start: int) -> Any:
    with suppress(ValueError, RecursionError):
        return json.JSONDecoder().raw_decode(text, start)[0]
    return None
