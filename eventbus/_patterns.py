"""
What the guardrails look for: detectors, the default ones, and the bound on what a pattern may cost.

A detector takes a text and answers the spans that it found. The default ones take time in proportion to the
text: every repetition in their patterns is bounded. Patterns of users are held to a bound by `steps`, and
searched for in windows.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from itertools import zip_longest
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote

import attrs

Span: TypeAlias = tuple[int, int]
Find: TypeAlias = Callable[[str], Iterable[Span]]

PROMPT: Final = "prompt"
ARGUMENTS: Final = "arguments"
RESULT: Final = "result"
PLACES: Final = frozenset({PROMPT, ARGUMENTS, RESULT})

WINDOW: Final = 512
"""Characters that a user's pattern is given at a time."""

OVERLAP: Final = 128
"""Characters of a window that the next one has, too: a match of at most this length is found anywhere."""

MOST_STEPS: Final = 8 * WINDOW**3
"""What a user's pattern may cost in one window, at most."""


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


_INVISIBLE: Final = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_LOOKALIKES: Final = re.compile("[\u00a0\u2000-\u200a\u2010-\u2015\u202f\u205f\u2212\u3000\uff01-\uff5e]")
_MEANT: Final = {
    **dict.fromkeys(map(chr, [0xA0, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000]), " "),
    **dict.fromkeys(map(chr, [*range(0x2010, 0x2016), 0x2212]), "-"),
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
}


def _as_seen(find: Find) -> Find:
    # A detector of ASCII reads a text as people see it: without what is not seen, other spaces, dashes and
    # full-width letters as the plain ones.
    def find_as_seen(text: str) -> Iterable[Span]:
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

    return find_as_seen


def _any_of(*needles: str) -> Callable[[str], bool]:
    def may_match(text: str) -> bool:
        low = text.lower()
        return any(needle in low for needle in needles)

    return may_match


def _decoded(text: str) -> str | None:
    # As a web server or a browser would read it; None if that is no other text.
    if "%" not in text and "&#" not in text and "&lt" not in text:
        return None
    decoded = html.unescape(unquote(unquote(text)))
    return None if decoded == text else decoded


def _attack(may_match: Callable[[str], bool], *sources: str) -> Find:
    pattern = re.compile("|".join(f"(?:{source})" for source in sources), re.IGNORECASE)

    def find(text: str) -> Iterable[Span]:
        found = [match.span() for match in pattern.finditer(text)] if may_match(text) else []
        if not found and (decoded := _decoded(text)) is not None and may_match(decoded):
            return [(0, len(text))] if pattern.search(decoded) else []
        return found

    _known_patterns.append(pattern)
    return find


_TOOLS: Final = frozenset({PROMPT, ARGUMENTS})
_known_patterns: list[re.Pattern[str]] = []
"""All that the default detectors search for; a test bounds their steps."""


def _known(source: str, flags: int = 0) -> re.Pattern[str]:
    pattern = re.compile(source, flags)
    _known_patterns.append(pattern)
    return pattern


# A command is no attack: what is listed here comes after something that ends another command, or stands where
# only a shell would look at it.
_SEPARATOR: Final = r"(?:;|\|{1,2}|&{1,2}|\$\(|(?<=[\w=:/.,;|&'\"-])`)[ \t]{0,8}+"
_SLASH: Final = r"[/\\]"
_SENSITIVE: Final = (
    rf"(?:{_SLASH}?etc{_SLASH}(?:passwd|shadow|hosts|sudoers|group|crontab|issue)\b"
    rf"|{_SLASH}?proc{_SLASH}(?:self|version|\d{{1,6}})\b"
    rf"|{_SLASH}?(?:root|winnt|web-inf){_SLASH}"
    rf"|{_SLASH}?var{_SLASH}(?:log|www|run){_SLASH}"
    rf"|{_SLASH}?windows{_SLASH}(?:win\.ini|system32|system\.ini)"
    rf"|{_SLASH}?(?:boot\.ini|web\.config)\b"
    rf"|[^\s'\";|&<>]{{0,80}}(?:{_SLASH}|(?<![\w.]))"
    rf"(?:\.ssh{_SLASH}|id_rsa|\.aws{_SLASH}|\.env\b(?!\.(?:example|sample|template|dist)\b)|\.htpasswd"
    rf"|\.git{_SLASH}config|\.bash_history))"
)
_IFS: Final = r"(?:[ \t]{1,8}|\$\{?IFS\}?(?:\$9)?|<)"
_COMMAND: Final = (
    rf"(?:(?:cat|head|tail|less|more|nl|tac|strings|base64|xxd|od|cp|mv|scp)"
    rf"(?:{_IFS}-[\w-]{{1,12}}+(?:{_IFS}\d{{1,6}}+)?){{0,2}}|grep{_IFS}[\w'\"-]{{1,40}}){_IFS}['\"]?{_SENSITIVE}",
    r"rm[ \t]{1,4}-[a-z]{1,6}\b",
    r"(?:curl|wget)[ \t]{1,4}(?:-[\w-]{1,20}[ \t]|['\"]?(?:https?|ftp)://"
    r"|['\"]?[\w-]{1,60}\.[\w.-]{1,60}[/:]|\$)",
    r"(?:nc|ncat|netcat)[ \t]{1,4}(?:-[a-z]{1,6}\b|[\w.-]{1,80}[ \t]{1,4}\d{2,5}\b)",
    r"(?:ba|z|k|da|c)?sh[ \t]{1,4}(?:-[ci]\b|<)",
    r"(?:whoami|ifconfig|ipconfig|systeminfo|tasklist|printenv)\b(?![ \t]{0,20}\|[^|])",
    r"uname[ \t]{1,4}-[a-z]\b",
    r"(?:python[23]?|perl|ruby|php|node|lua)[ \t]{1,4}-[cer][ \t]",
    r"(?:powershell|pwsh)(?:\.exe)?[ \t]{1,4}[-/\"'(]",
    r"cmd(?:\.exe)?[ \t]{1,4}/[ck]\b",
    r"(?:certutil|bitsadmin|mshta|regsvr32|rundll32)(?:\.exe)?[ \t]{1,4}[-/\w]",
    r"(?:chmod|chown)[ \t]{1,4}(?:-R[ \t]{1,4})?(?:0?[0-7]?777|[ugoa]{0,3}\+s|[46]7\d\d|root)\b",
    r"(?:nslookup|dig|ping|traceroute)[ \t]{1,4}(?:-[a-z]\b|[\w-]{1,60}\.[\w.-]{1,60}|`|\$\()",
    r"sleep[ \t]{1,4}\d{1,5}[smh]?[ \t]{0,8}(?:$|[;&|)#`])",
    r"ls(?:[ \t]{1,4}-[a-z]{1,6}\b|[ \t]{1,4}/|[ \t]{0,4}(?:$|[;&|)#`]))",
    r"id[ \t]{0,4}[)`]",
    r"(?<=[\d;][;|&])id[ \t]{0,4}(?:$|[;#&])",
    r"(?<=\d[;|&][ \t])id[ \t]{0,4}(?:$|[;#&])",
    r"(?<=\d[ \t][;|&][ \t])id[ \t]{0,4}(?:$|[;#&])",
    r"(?:ps[ \t]{1,4}(?:aux|-ef)|netstat[ \t]{1,4}-[a-z]{1,6})\b",
    r"(?:mkfs(?:\.\w{2,5})?[ \t]|dd[ \t]{1,4}if=|mkfifo[ \t]{1,4}/|crontab[ \t]{1,4}-[lre]"
    r"|useradd[ \t]{1,4}[-\w])",
    r"(?:shutdown|halt|reboot|poweroff)[ \t]{1,4}(?:-[a-z]\b|/[rs]\b)",
    r"(?:kill|pkill|killall)[ \t]{1,4}-(?:9|kill)\b",
    r"(?:dir|type|del|copy|more)[ \t]{1,4}(?:/[a-z][ \t]{1,4}){0,3}(?:[a-z]:[\\/]|%\w{1,20}%|\.\.\\)",
    r"net[ \t]{1,4}(?:user|localgroup)(?:[ \t]{0,4}$|[ \t]{1,4}(?:/"
    r"|\w{1,40}[ \t]{1,4}\S{1,40}[ \t]{1,4}/add))",
    r"(?:echo|printf)[ \t][^\n|]{1,200}(?:>{1,2}[ \t]{0,4}(?:/(?:etc|var|tmp|root|home|usr)/|~/"
    r"|[\w./-]{1,60}\.(?:php|jsp|aspx?|sh)\b)"
    r"|\|[ \t]{0,4}(?:base64[ \t]{1,4}-d|(?:ba|z|da)?sh\b))",
    r"sudo[ \t]{1,4}(?:rm|su|bash|sh|cat|chmod|passwd|visudo)\b",
    r"find[ \t]{1,4}/[^\n]{0,80}-(?:exec|delete|perm)\b",
    r"(?:/usr)?/bin/(?:ba|z|k|da)?(?:sh|cat|id|nc|ls|rm)\b",
    r"(?:env|set|export)[ \t]{0,4}\|",
    r"eval[ \t]{1,4}[\"'`$]",
)
_find_shell = _attack(
    _any_of(";", "|", "&", "`", "$(", "/dev/tcp/", "rm ", "cat ", "mkfifo ", ">&", "nc -", "whoami", "\nid"),
    rf"{_SEPARATOR}(?:{'|'.join(_COMMAND)})",
    r"\|[ \t]{0,8}(?:sudo[ \t]{1,4})?(?:ba|z|k|da)?sh\b(?![ \t]{0,20}\|)(?=[ \t]{0,8}(?:$|[-\n;&)\"'`]))",
    rf"[\r\n][ \t]{{0,8}}(?:cat[ \t]{{1,4}}{_SENSITIVE}|rm[ \t]{{1,4}}-rf?[ \t]{{1,4}}[/~]"
    rf"|whoami[ \t]{{0,8}}$|id[ \t]{{0,8}}\Z)",
    r"/dev/(?:tcp|udp)/[\w.$-]{1,80}/\d",
    r"\bbash[ \t]{1,4}-i[ \t]{1,4}>&",
    r"\bnc[ \t]{1,4}-[a-z]{0,4}[ec][ \t]{1,4}(?:/bin/|cmd)",
    r":\(\)[ \t]{0,4}\{[ \t]{0,4}:\|:&[ \t]{0,4}\}",
    r"\A\s{0,8}(?:sudo[ \t]{1,4})?rm[ \t]{1,4}(?:-[a-z-]{1,20}[ \t]{1,4}){1,3}(?:/|~|/\*|\*"
    r"|\$HOME)/?(?:[ \t]{1,4}--[a-z-]{1,30}){0,2}\s{0,8}\Z",
    rf"\A\s{{0,8}}cat[ \t]{{1,4}}{_SENSITIVE}",
    r"(?:\{|\b)cat(?:,|\$\{?IFS\}?)/?etc/",
)

_GAP: Final = r"(?:[\s+]|/\*[^*]{0,40}\*/|--[ \t]?\n){1,8}+"
_NO_GAP: Final = r"(?:[\s+(]|/\*[^*]{0,40}\*/){0,8}+"
_QUOTE: Final = r"[\"'`\u2019]"
_NAME: Final = r"[\w.\[\]`\"@]{1,60}+"
_sql = (
    # A quote is closed, and what follows is always true, or always false.
    _attack(
        _any_of(
            "=",
            "<",
            ">",
            "like",
            "--",
            "#",
            "/*",
            "true",
            "false",
            "sleep",
            "benchmark",
            "exists",
            "ascii",
            "substr",
            " in",
        ),
        rf"{_QUOTE}\)?{_NO_GAP}(?:or|and|\|\||&&|xor){_NO_GAP}(?:not{_GAP})?"
        rf"(?:{_QUOTE}(?:[^'\"\s]{{0,20}}){_QUOTE}?[ ]{{0,4}}(?:(?:=|<|>)[ ]{{0,4}}(?:{_QUOTE}|\d|\()"
        rf"|like\b|in[ ]?\()"
        rf"|\w{{1,40}}{_GAP}like{_GAP}'%"
        rf"|\d{{1,9}}{_QUOTE}?[ ]{{0,4}}(?:=|<|>|like\b|--|#|/\*)|(?:true|false)\b"
        r"|(?:sleep|benchmark|pg_sleep|exists|ascii|substring|length)\b[ ]{0,4}\()",
    ),
    # A number is followed by a comparison of constants, or stands before a function that a value never calls.
    _attack(
        _any_of("=", "sleep", "benchmark", "exists", "ascii", "substr"),
        rf"(?:\b\d{{1,12}}|\)){_GAP}(?:(?:or|\|\|){_NO_GAP}\d{{1,9}}[ ]{{0,4}}=[ ]{{0,4}}\d{{1,9}}\b"
        rf"|and{_GAP}\d=\d\b)",
        rf"(?:\b\d{{1,12}}|\)){_GAP}(?:or|and){_NO_GAP}(?:sleep|benchmark|pg_sleep|exists|ascii"
        rf"|substring)[ ]{{0,4}}\(",
        rf"\A\s{{0,8}}(?:or|and){_GAP}\d{{1,9}}[ ]{{0,4}}=[ ]{{0,4}}\d",
    ),
    # A condition that asks another table.
    _attack(
        _any_of("select"),
        rf"(?:{_QUOTE}\)?|\b\d{{1,12}}\)?)[ ]{{0,4}}(?:or|and|\|\||xor)[ ]{{0,4}}\([ ]{{0,4}}select\b"
        rf"{_GAP}(?:[*\d]|\w{{1,40}}+\(|{_NAME}{_GAP}from{_GAP}{_NAME}"
        rf"(?:{_GAP}(?:where|limit)\b|[ )]{{0,4}}(?:[=<>#]|--)))",
    ),
    # A second statement.
    _attack(
        _any_of(";"),
        rf"(?:{_QUOTE}\)?|\b\d{{1,12}}\)?|\))[ ]{{0,4}};{_NO_GAP}(?:"
        rf"drop{_GAP}(?:table|database|schema|view|user){_GAP}\w"
        rf"|delete{_GAP}from{_GAP}{_NAME}{_NO_GAP}(?:;|--|#|where\b|\Z)"
        rf"|insert{_GAP}into{_GAP}{_NAME}{_NO_GAP}(?:\(|values\b|select\b|[\w,' ]{{1,60}}\)|['\"\d])"
        rf"|update{_GAP}{_NAME}{_GAP}set{_GAP}{_NAME}{_NO_GAP}="
        rf"|alter{_GAP}(?:table|user|login){_GAP}{_NAME}{_GAP}(?:add|drop|modify|rename|identified|with)\b"
        rf"|truncate{_GAP}(?:table{_GAP}\w|{_NAME}{_NO_GAP}(?:;|--))"
        rf"|create{_GAP}(?:user|table|login){_GAP}{_NAME}{_NO_GAP}(?:\(|identified\b|with\b|as\b|;|--"
        rf"|[a-z]{{3,8}}\)|\w{{1,40}}{_GAP}int)"
        rf"|exec(?:ute)?{_NO_GAP}(?:xp_|sp_|master|immediate|@|['\"])"
        rf"|declare{_GAP}@|shutdown{_NO_GAP}(?:;|--|\Z)|grant{_GAP}(?:all|select|execute|dba)\b"
        rf"|waitfor{_GAP}(?:delay|time)"
        rf"|select{_GAP}(?:[*@(]|\d|null\b|\w{{1,40}}\(|{_NAME}{_NO_GAP}(?:,|from\b)))",
        r";[ ]{0,4}(?:waitfor\s{1,4}delay|exec\s{1,4}(?:master\.{1,2})?(?:dbo\.)?xp_|shutdown\s{1,4}with)",
    ),
    # The rest of the statement is cut off.
    _attack(
        _any_of("--", "#", "/*", "having", "order"),
        rf"\A[\w.@-]{{1,64}}(?:{_QUOTE}\){{0,3}}|(?<!s){_QUOTE}\){{0,3}}[ ]{{1,4}})(?:--|#"
        rf"|/\*)[^\n]{{0,10}}\Z",
        rf"(?:{_QUOTE}\){{0,3}}|\b\d{{1,12}}\)?){_GAP}(?:having|group{_GAP}by"
        rf"|order{_GAP}by){_GAP}\d{{1,4}}[ ]{{0,4}}(?:--|#|=)",
    ),
    # What reads or runs things beyond the table, where a value would stand.
    _attack(
        _any_of(
            "sleep",
            "benchmark",
            "extractvalue",
            "updatexml",
            "load_file",
            "receive_message",
            "utl_",
            "xp_cmdshell",
        ),
        rf"(?:{_QUOTE}\)?|\b\d{{1,12}}\)?){_NO_GAP}(?:;|,|\|\||or|and|\+|-|xor"
        rf"|select){_NO_GAP}(?:select{_GAP})?"
        r"(?:sleep|pg_sleep|benchmark|extractvalue|updatexml|load_file|dbms_pipe\.receive_message"
        r"|utl_http\.request|utl_inaddr\.get_host_address|xp_cmdshell)[ ]{0,4}\(",
    ),
    _attack(
        _any_of("union", "un/*", "outfile", "dumpfile"),
        rf"\bunion{_GAP}(?:(?:all|distinct){_GAP})?select{_GAP}(?:null|\d|@@|char\(|concat|user\("
        rf"|version\(|database\(|load_file)"
        r"[^\n]{0,200}(?:--|#|/\*|information_schema|null[ ]{0,4}\Z|\d[ ]{0,4}\Z)",
        r"\binto\s{1,4}(?:out|dump)file\s{1,4}['\"]",
        r"\bun/\*[^*]{0,20}\*/ion\b|\bunion/\*!?|/\*!\d{0,5}[ ]?union\b",
    ),
)
_UNION: Final = _known(
    rf"\bunion{_GAP}(?:(?:all|distinct){_GAP})?select{_GAP}"
    rf"(?:null\b|\d|[@*'\"(]|[\w.]{{1,60}}(?:\(|[ ]{{0,4}},|{_GAP}from\b))",
    re.IGNORECASE,
)
_EARLIER: Final = 2000


def _find_sql(text: str) -> Iterable[Span]:
    found = [span for find in _sql for span in find(text)]
    decoded = _decoded(text)
    for source in (text, decoded):
        if source is None or found or "union" not in (low := source.lower()):
            continue
        for match in _UNION.finditer(source):
            # Without a SELECT before it, it goes on somebody else's.
            if "select" not in low[max(0, match.start() - _EARLIER) : match.start()]:
                found.append(match.span() if source is text else (0, len(text)))
                break
    return found


_find_path = _attack(
    _any_of(
        "..",
        "/etc/",
        "%00",
        "\0",
        "win.ini",
        "/proc/",
        "boot.ini",
        ".ssh",
        ".aws",
        "%c0",
        "%25",
        "\\windows\\",
        "id_rsa",
        "php://",
        "expect://",
        "zip://",
    ),
    rf"(?:\.\.[/\\]{{1,2}}+){{1,20}}+(?:[^\s/\\]{{1,40}}+[/\\]){{0,4}}{_SENSITIVE}",
    r"(?:\.\.[/\\]{1,2}){6}",
    r"(?:\.{4}//|\.{4}\\\\|\.\.;/){1,20}",
    r"\.\.(?:%c0%af|%c1%9c|%25(?:25){0,3}(?:2f|5c)|%u2215|%u2216|%e0%80%af)",
    r"(?:%c0%ae|%25(?:25){0,3}2e){2}",
    r"(?:\.\.(?:%2f|%5c)|%2e%2e(?:[/\\]|%2f|%5c)){2}",
    rf"\A\s{{0,8}}(?:file:/{{0,3}}+)?(?:[a-z]:)?{_SLASH}(?:etc/(?:passwd|shadow|sudoers|gshadow)|proc/self/"
    rf"|windows{_SLASH}(?:win\.ini|system32{_SLASH}(?:config|drivers{_SLASH}etc){_SLASH})"
    rf"|[^\s'\";|&<>]{{0,80}}{_SLASH}(?:\.ssh|\.aws){_SLASH})[^\s'\";|&<>]{{0,60}}\s{{0,8}}\Z",
    r"[\w./\\-]\x00",
    r"\bfile:/{2,3}(?:etc|proc|root|windows|c:[/\\]windows)[/\\]",
    r"\bphp://(?:filter|input)|\bexpect://|\bzip://[^\s]{1,80}#",
)

_CALL: Final = (
    r"(?:(?:alert|prompt|confirm|eval|fetch|import|atob|settimeout|string\.fromcharcode"
    r"|xmlhttprequest)\s{0,4}[(`]"
    r"|(?:document\s{0,4}(?:\.\s{0,4}(?:cookie|location|domain|write|body|referrer)\b|\[)"
    r"|window\s{0,4}(?:\.\s{0,4}(?:location|open|name|atob|eval|alert|fetch)\b|\[))"
    r"|location\s{0,4}[.=(\[]|new\s{1,4}image\b|string\.fromcharcode"
    r"|this\.src\b"
    r"|(?:top|self)\[)"
)
_find_script = _attack(
    _any_of("<", "script:", "data:text/html", "expression(", "srcdoc"),
    rf"<script\b[^>]{{0,300}}+>[^<]{{0,300}}?{_CALL}",
    r"<script\b[^>]{0,200}\bsrc\s{0,4}=\s{0,4}(?:['\"]?(?:https?:)?//|['\"]?data:)",
    rf"<[a-z]{{1,20}}+[\s/][^>]{{0,120}}?\bon[a-z]{{3,20}}\s{{0,4}}=\s{{0,4}}['\"`]?[^>]{{0,40}}{_CALL}",
    rf"\b(?:java|vb|live)\s{{0,4}}script\s{{0,4}}:\s{{0,8}}(?:/{{2,3}})?[^\s]{{0,20}}(?:{_CALL}|msgbox\b)",
    r"\bdata:text/html[^\s,]{0,40},[^\s]{0,40}(?:<|%3c|[A-Za-z0-9+/]{20})",
    r"<(?:iframe|embed|object|frame|base|link|form|a|img|input|button)\b[^>]{0,200}\b(?:src|href|data"
    r"|action|formaction)"
    r"\s{0,4}=\s{0,4}['\"]?\s{0,8}(?:javascript|vbscript|data:text/html)",
    r"<(?:iframe|embed|object)\b[^>]{0,200}\bsrcdoc\s{0,4}=[^>]{0,40}<",
    r"<meta\b[^>]{0,200}http-equiv\s{0,4}=\s{0,4}['\"]?refresh[^>]{0,200}(?:javascript|data):",
    r"\bstyle\s{0,4}=[^>]{0,80}expression\s{0,4}\(",
    r"<iframe\b[^>]{0,200}\bsrc\s{0,4}=\s{0,4}['\"]?(?:https?:)?//[^>]{0,200}(?:width"
    r"|height)\s{0,4}=\s{0,4}['\"]?0\b",
)

_find_code = _attack(
    _any_of(
        "${",
        "{{",
        "<%",
        "#{",
        "<?",
        "__",
        "jndi",
        "os.system",
        "subprocess",
        "runtime",
        "{%",
        "eval",
        "exec",
        "<!entity",
        "<!doctype",
        "system\n",
        "popen\n",
    ),
    r"\$\{jndi:",
    r"\$\{(?:\$\{[^}\s]{0,20}\}|[jndi]){1,8}+[^\s]{0,40}(?:ldaps?|rmi|dns|iiop|:\$\{[^}\s]{0,20}\}dap)://",
    r"(?:\{\{|\$\{|#\{|<%=|\*\{|@\()[ ]{0,4}\d{1,9}[ ]{0,4}\*[ ]{0,4}['\"]?\d{1,9}['\"]?[ ]{0,4}(?:\}|%>|\))",
    r"\{[{%][^\n}]{0,120}(?:__class__|__mro__|__subclasses__|__globals__|__builtins__|config\.items\("
    r"|request\.application|cycler\.|lipsum)",
    r"\b__import__[ ]{0,4}\([ ]{0,4}['\"](?:os|subprocess|socket|pty|shutil|sys|builtins)['\"]",
    r"(?:\(\)|''|\"\"|\[\]|\{\})\.__class__\.(?:__base__|__mro__|__bases__)",
    r"<\?(?:php|=)?[^\n]{0,80}\b(?:system|exec|shell_exec|passthru|eval|assert|popen"
    r"|proc_open)[ ]{0,4}\([ ]{0,4}(?:\$_|['\"])",
    r"\$\{[^\n]{0,80}(?:T\(java|java\.lang\.|getRuntime|ProcessBuilder)|T\(java\.lang\.Runtime\)"
    r"|Runtime\.getRuntime\(\)\.exec\(['\"](?:cmd|/bin|calc|curl|wget|bash|nc|id|whoami)",
    r"\b(?:eval|exec)[ ]{0,4}\([ ]{0,4}(?:base64\.|codecs\.|compile\(|__import__|bytes\.fromhex|atob\("
    r"|String\.fromCharCode)",
    r"\{php\}|<%[^\n%]{0,80}(?:Runtime|ProcessBuilder|eval[ ]{0,4}\(?request|execute[ ]{0,4}\(?request"
    r"|system[ ]?\(|IO\.popen|`[a-z])",
    r"\{\{[^\n}]{0,80}(?:constructor\.constructor|_self\.env|\|filter\(['\"](?:system|exec)"
    r"|registerUndefinedFilterCallback)",
    r"cos\nsystem\n|c__builtin__\neval|c(?:posix|os|subprocess)\n(?:system|popen|Popen)\n",
    r"<!ENTITY\b[^>]{0,200}?\bSYSTEM[ ]{1,4}['\"](?:file|https?|ftp|php|expect|gopher)://",
)

# A host in a URL, with what stands before it.
_URL: Final = _known(
    r"\b(?:jar:)?([a-z][a-z0-9+.-]{1,10}):[/\\]{2,3}([^\s/?#!\\\"'<>]{1,255})([^\s\"'<>]{0,200})",
    re.IGNORECASE,
)
_METADATA: Final = frozenset(
    {
        "metadata.google.internal",
        "metadata.goog",
        "metadata",
        "instance-data",
        "instance-data.ec2.internal",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "168.63.129.16",
        "rancher-metadata",
        "kubernetes.default.svc",
        "kubernetes.default",
    }
)
_SMUGGLING: Final = frozenset({"gopher", "dict", "tftp", "netdoc", "ldap", "ldaps"})
_REBINDING: Final = (".nip.io", ".sslip.io", ".xip.io", ".localtest.me", ".lvh.me", ".rbndr.us")
_LOCAL_NAMES: Final = frozenset(
    {"localhost", "localhost.localdomain", "localtest.me", "lvh.me", "ip6-localhost"}
)
_NUMERIC: Final = _known(
    r"(?:0x[0-9a-f]{1,8}|\d{1,12})(?:\.(?:0x[0-9a-f]{1,8}|\d{1,12})){0,3}\Z", re.IGNORECASE
)


def _find_ssrf(text: str) -> Iterable[Span]:
    is_read = "://" in text or ":\\\\" in text
    if not is_read and "%3a%2f%2f" not in text.lower():
        host = re.split("[/:]", text.strip().lstrip("/"), maxsplit=1)[0]
        return [(0, len(text))] if host in _METADATA_ADDRESSES and len(text.split()) == 1 else []
    text_read = text if is_read else unquote(text)
    found: list[Span] = []
    for match in _URL.finditer(text_read):
        # An address of one's own network is what a URL leads to if it is the whole of a value; in prose,
        # people write of their own machines.
        whole = not text_read[: match.start()].strip() and not text_read[match.end() :].strip()
        if _is_forged(match[1].lower(), match[2].lower(), whole=whole):
            found.append(match.span() if text_read is text else (0, len(text)))
    return found


_METADATA_ADDRESSES: Final = frozenset({"169.254.169.254", "metadata.google.internal", "169.254.170.2"})


def _is_forged(scheme: str, authority: str, *, whole: bool) -> bool:
    if scheme in _SMUGGLING:
        return whole or ":" in authority
    if scheme not in {"http", "https", "ftp", "ws", "wss"}:
        return False
    userinfo, _, host = authority.rpartition("@")
    # As browsers read it: https://www.unicode.org/reports/tr46/.
    host = unicodedata.normalize("NFKC", unquote(host)).replace("\u3002", ".")
    host = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    host = host.rstrip(".,;)")
    if host in _METADATA or host.endswith((".compute.internal", *_REBINDING)):
        return True
    plain, address = _address_of(host)
    if address is None:
        return host in _LOCAL_NAMES and (whole or bool(userinfo))
    if address.is_link_local or str(address) in _METADATA:
        return True
    inside = not address.is_global
    return inside and (whole or not plain or bool(userinfo))


def _address_of(host: str) -> tuple[bool, Any]:
    # Whether it is written as addresses are, and the address; decimal, octal and hexadecimal forms are what
    # resolvers still take.
    try:
        address: Any = ip_address(host)
    except ValueError:
        if not _NUMERIC.match(host):
            return False, None
    else:
        mapped = getattr(address, "ipv4_mapped", None)
        return mapped is None, address if mapped is None else mapped
    parts = [_number(part) for part in host.split(".")]
    *leading, last = parts
    if None in parts or any(cast("int", part) > 255 for part in leading):
        return False, None
    value = sum(cast("int", part) << (24 - 8 * index) for index, part in enumerate(leading)) + cast(
        "int", last
    )
    # A small number as a host is no trick, but zero is: it leads to this machine.
    return False, ip_address(value) if value < 2**32 and (value >= 2**24 or value == 0) else None


def _number(text: str) -> int | None:
    low = text.lower()
    try:
        return (
            int(low, 16)
            if low.startswith("0x")
            else int(low, 8 if low.startswith("0") and low != "0" else 10)
        )
    except ValueError:
        return None


DEFAULT_BLOCKED_PATTERNS: Final[dict[str, Detector]] = {
    name: Detector(_as_seen(find), _TOOLS, stable=True)
    for name, find in {
        "shell_injection": _find_shell,
        "sql_injection": _find_sql,
        "path_traversal": _find_path,
        "script_injection": _find_script,
        "code_injection": _find_code,
        "ssrf": _find_ssrf,
    }.items()
}
"""Known forms of attacks on what is behind a tool, looked for in prompts and arguments."""


_EMAIL: Final = _known(
    r"(?:(?<![\w.%+-])[\w.%+-]{1,64}+@|(?:(?<=%[0-9A-Fa-f]{2})|(?<![\w.%+-]))[\w.+-]{1,64}+%40)"
    r"(?:[^\W_][\w-]{0,62}+\.){1,8}([^\W\d_]{2,24}+)(?![_-]{0,8}[^\W_]|@)"
)
_NO_TLD: Final = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js", "py", "json", "html"})


def _find_email(text: str) -> Iterable[Span]:
    if "@" not in text and "%40" not in text:
        return
    for match in _EMAIL.finditer(text):
        # icon@2x.png is a file, and git@host: the address of a repository.
        is_remote = match.group().startswith("git@") and text[match.end() : match.end() + 1] == ":"
        if match[1].lower() not in _NO_TLD and not is_remote:
            yield match.span()


_DIGIT: Final = _known(r"\d")
_PHONE: Final = _known(
    r"(?<![\w+./-])(?<!\d )(?:"
    r"\+[1-9](?:[ .()-]{0,2}\d){7,14}+"
    r"|(?:1[ .-])?\([2-9]\d{2}\)[ ]?[2-9]\d{2}[ .-]\d{4}"
    r"|(?:1[ .-])?[2-9]\d{2}(?: [2-9]\d{2} |\.[2-9]\d{2}\.|-[2-9]\d{2}-)\d{4}"
    r"|\(0\d{2,4}\)[ ]?\d{3,4}[ -]?\d{3,5}"
    r"|0\d{2,4}[ /-]\d{3,4}[ -]?\d{3,5}"
    r")(?![\w+/]|[ .-]\d)"
)


_THING: Final = _known(
    r"(?:\b(?:order|invoice|lot|item|batch|ticket|part|article|sku|serial|tracking|rma|model|docket"
    r"|(?:customer|account|contract|policy|reference|ref|booking|case)(?=.?(?:no|nr|num|id|#))"
    r"|(?:bestell|rechnungs|kunden|konto|artikel|auftrags|vorgangs)(?=nummer|nr)|rechnung)"
    r"[ ]?(?:number|nummer|no|nr|id|#)?"
    r"[ :.#]{0,3})\Z",
    re.IGNORECASE,
)


def _find_phone(text: str) -> Iterable[Span]:
    for match in _PHONE.finditer(text):
        # What says of itself that it is the number of something else is none of a person.
        if match.group().startswith("+") or not _THING.search(
            text[max(0, match.start() - 32) : match.start()]
        ):
            yield match.span()


_SSN: Final = _known(r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")


def _find_ssn(text: str) -> Iterable[Span]:
    return [match.span() for match in _SSN.finditer(text)]


_CARD: Final = _known(
    r"(?<![\w.+-])(?:\d{14,19}|(?:\d{4} ){3}\d{4}(?: \d{1,3})?|(?:\d{4}-){3}\d{4}(?:-\d{1,3})?"
    r"|\d{4} \d{6} \d{4,5}|\d{4}-\d{6}-\d{4,5})(?![\w-])"
)
_LUHN: Final = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def is_card(digits: str) -> bool:
    """
    Tell whether digits are a card's number: by the ranges and lengths of its issuers, and their sum (Luhn).
    """
    return _has_issuer(digits) and luhn(digits)


def luhn(digits: str) -> bool:
    """
    Tell whether the digit sum of ISO/IEC 7812 fits.
    """
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[::2]) + sum(_LUHN[value] for value in values[1::2])) % 10 == 0


def _has_issuer(digits: str) -> bool:
    size, two, three, four = len(digits), int(digits[:2]), int(digits[:3]), int(digits[:4])
    if size == 14:
        return two in {36, 38, 39} or 300 <= three <= 305
    if size == 15:
        return two in {34, 37}
    if size < 16 or size > 19:
        return False
    return (
        (digits[0] == "4" and size in {16, 19})
        or ((51 <= two <= 55 or 2221 <= four <= 2720) and size == 16)
        or four == 6011
        or two == 65
        or 644 <= three <= 649
        or 3528 <= four <= 3589
        or two == 62
    )


def _find_card(text: str) -> Iterable[Span]:
    for match in _CARD.finditer(text):
        if is_card("".join(character for character in match.group() if character.isdecimal())):
            yield match.span()


_IPV4: Final = _known(r"(?<![\w.+-])(?:\d{1,3}\.){3}\d{1,3}(?![\w+-]|\.\d)")
_IPV6: Final = _known(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{2,35}(?![\w:])")
_VERSION: Final = _known(
    r"(?:\b(?:v|ver|version|versions|release|releases|rev|revision|build|firmware|driver|patch|update"
    r"|upgrade|kernel|section|chapter|clause|oid)"
    r"[ :.=]{0,3}|(?:[=<>~^]=|[<>~^])[ ]?)\Z",
    re.IGNORECASE,
)
_RESOLVERS: Final = frozenset({"8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9"})
_SMALL: Final = 32


def _find_ip(text: str) -> Iterable[Span]:
    if "." in text:
        for match in _IPV4.finditer(text):
            parts = match.group().split(".")
            # All four small is how versions are written, and how one address in four thousand is.
            if (
                any(int(part) >= _SMALL for part in parts)
                and _is_personal(match.group())
                and not _VERSION.search(text[max(0, match.start() - 24) : match.start()])
            ):
                yield match.span()
    if ":" in text:
        for match in _IPV6.finditer(text):
            if _is_personal(match.group()):
                yield match.span()


def _is_personal(written: str) -> bool:
    # An address of a private network, of documentation or of a public resolver leads to no person.
    try:
        return ip_address(written).is_global and written not in _RESOLVERS
    except ValueError:
        return False


_IBAN: Final = _known(r"(?<![\w-])[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?(?![\w-])")
_COUNTRIES: Final = {
    15: "NO",
    16: "BE",
    18: "DK FI NL",
    19: "SI",
    20: "AT EE LT LU",
    21: "CH HR LI LV",
    22: "BG DE GB IE RS",
    23: "AE GI IL",
    24: "AD CZ ES RO SA SE SK",
    25: "PT",
    26: "IS TR",
    27: "FR GR IT MC SM",
    28: "CY HU PL",
    29: "BR UA",
    31: "MT",
}
_IBAN_LENGTHS: Final = {
    country: size for size, countries in _COUNTRIES.items() for country in countries.split()
}


def _find_iban(text: str) -> Iterable[Span]:
    for match in _IBAN.finditer(text):
        # What follows it in capitals may look like one more group.
        size = _IBAN_LENGTHS.get(match.group()[:2], 0)
        ends = [end for end, character in enumerate(match.group(), 1) if character != " "]
        if 0 < size <= len(ends) and is_iban(match.group()[: ends[size - 1]]):
            yield match.start(), match.start() + ends[size - 1]


def is_iban(written: str) -> bool:
    """
    Tell whether a number of an account is sound: by the remainder of ISO 7064 (mod 97).
    """
    compact = written.replace(" ", "")
    return int("".join(str(int(character, 36)) for character in compact[4:] + compact[:4])) % 97 == 1


_KEY: Final = _known(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-(?:proj-|ant-|or-)?[A-Za-z0-9_-]{20,200}"
    r"|(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{16,200}+"
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255}"
    r"|glpat-[A-Za-z0-9_-]{20,64}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,250}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|npm_[A-Za-z0-9]{36}|hf_[A-Za-z]{30,40}|pypi-[A-Za-z0-9_-]{32,255}"
    r"|SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"
    r"|eyJ[A-Za-z0-9_-]{10,2000}+\.eyJ[A-Za-z0-9_-]{10,4000}+\.[A-Za-z0-9_-]{10,1000}+"
    r")(?![A-Za-z0-9])"
    # To its end; where that is missing, as far as it looks like one.
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:[^-]|-(?!----(?:END|BEGIN))){0,8000}+-----END [A-Z ]{0,30}PRIVATE KEY(?: BLOCK)?-----"
    r"|(?:(?:\s|\\[nr]){0,4}+[A-Za-z0-9+/=]{16,80}+){0,100}+)"
)
_KEY_STARTS: Final = (
    "sk-",
    "k_live_",
    "k_test_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "ASIA",
    "AIza",
    "npm_",
    "hf_",
    "pypi-",
    "SG.",
    "eyJ",
    "PRIVATE KEY",
)


def _find_key(text: str) -> Iterable[Span]:
    if any(start in text for start in _KEY_STARTS):
        return [match.span() for match in _KEY.finditer(text)]
    return []


def _with_digits(find: Find) -> Detector:
    return _personal(lambda text: find(text) if _DIGIT.search(text) else ())


def _personal(find: Find) -> Detector:
    return Detector(_as_seen(find), stable=True)


DEFAULT_PII_PATTERNS: Final[dict[str, Detector]] = {
    "email": _personal(_find_email),
    "phone": _with_digits(_find_phone),
    "ssn": _with_digits(_find_ssn),
    "credit_card": _with_digits(_find_card),
    "ip_address": _with_digits(_find_ip),
    "iban": _with_digits(_find_iban),
    "api_key": _personal(_find_key),
}
"""Personal data, and keys by the prefixes that their issuers gave them."""
