"""
One look through a value: what the rules of a hook find in its texts, and the texts as they may go on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from ._attacks import DEFAULT_BLOCKED_PATTERNS
from ._detectors import PLACES, Detector, Span
from ._personal_data import DEFAULT_PII_PATTERNS
from ._redact import mask_text
from ._texts import Clean, Texts

Action: TypeAlias = Literal["block", "warn", "redact", "allow"]

CONTEXT: Final = "context"
"""Where messages stand that are neither the user's nor a tool's: they are redacted, and not judged."""

_EXCERPT: Final = 24
_LONGEST_EXCERPT: Final = 80
_SECRETS_WITHIN: Final = 4096


@attrs.frozen
class GuardrailViolation:
    """
    What one rule has found at one gate, and what was done about it.

    Attributes:
        rule: The rule.
        action: "block", "warn", "redact" or "allow".
        description: What was found where, in words.
        where: The path to the first find, as in `arguments.customer.note`.
        excerpt: The first find with some of what is around it, without personal data and secrets.
        count: How many finds there were.
        gate: The name of the gate's event class.
        tool: The name of the tool; None where a prompt or a message was judged.
        correlation_id: The run.
    """

    rule: str
    action: Action
    description: str
    where: str
    excerpt: str = ""
    count: int = 1
    gate: str = ""
    tool: str | None = None
    correlation_id: str | None = None


class Rule(NamedTuple):
    """
    A pattern, and what is done where it is found.
    """

    name: str
    detector: Detector
    action: Action
    personal: bool


def _label(rule: str) -> str:
    return f"[REDACTED:{rule}]"


class Question(NamedTuple):
    """
    The rules that are asked in one place, and the texts in which they have found nothing.
    """

    rules: tuple[Rule, ...]
    clean: Clean | None


class Rules:
    """
    The rules of one hook, by where they are asked.

    Attributes:
        label: What stands in the place of what a rule has found: nothing is looked for within it.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        every = tuple(rules)
        # Only with names of rules: whoever writes a text may write anything else between the brackets.
        known = [*DEFAULT_BLOCKED_PATTERNS, *DEFAULT_PII_PATTERNS, *(rule.name for rule in every)]
        self.label = re.compile("|".join(re.escape(_label(name)) for name in known))
        redacting = tuple(rule for rule in every if rule.action == "redact")
        self._questions = {(place, False): _question(every, place) for place in PLACES}
        self._questions |= {(place, True): _question(redacting, place) for place in PLACES}
        self._questions[CONTEXT, False] = _question(redacting, None)

    def asked(self, place: str, *, only_redacting: bool) -> Question:
        """
        Return what is asked in a place.
        """
        return self._questions[place, only_redacting]


def _question(rules: Iterable[Rule], place: str | None) -> Question:
    asked = tuple(rule for rule in rules if place is None or place in rule.detector.where)
    return Question(asked, Clean() if all(rule.detector.stable for rule in asked) else None)


class Inspection:
    """
    One look through what a gate judges: the texts as they may go on, and what was found in them.

    Attributes:
        found: What each rule has found, with its name; in the order of the first finds.
        is_changeable: Whether there was an object that somebody may still change in place.
    """

    def __init__(self, rules: Rules, *, only_redacting: bool = False) -> None:
        self._rules = rules
        self._only_redacting = only_redacting
        self.found: dict[str, GuardrailViolation] = {}
        self.is_changeable = False

    def look(self, value: Any, path: str, place: str) -> tuple[Any, int]:
        """
        Return a value as it may go on, and how many characters of text were in it.

        Raises:
            TooLargeError: If there is more than can be looked through.
            Exception: What a detector raises.
        """
        asked = self._rules.asked(place, only_redacting=self._only_redacting)

        def edit(text: str, path: str) -> str:
            return self._edit(text, path, asked.rules, texts)

        texts = Texts(edit, asked.clean)
        new = texts.rewrite(value, path)
        self.is_changeable = self.is_changeable or texts.is_changeable
        return new, texts.characters

    def note(self, rule: str, action: Action, description: str, where: str) -> None:
        """
        Add what a rule has found that is no pattern.
        """
        self.found.setdefault(rule, GuardrailViolation(rule, action, description, where))

    def _edit(self, text: str, path: str, rules: Iterable[Rule], texts: Texts) -> str:
        hits = [(rule, spans) for rule in rules if (spans := rule.detector.spans(text))]
        if not hits:
            return text
        texts.finds += 1
        if "[REDACTED:" in text:
            labels = [match.span() for match in self._rules.label.finditer(text)]
            hits = [(rule, kept) for rule, spans in hits if (kept := _outside(spans, labels))]
        hidden = _merged([(*span, rule.name) for rule, spans in hits if rule.personal for span in spans])
        for rule, spans in hits:
            self._note_spans(rule, spans, text, path, hidden)
        replaced = _merged(
            [(*span, rule.name) for rule, spans in hits if rule.action == "redact" for span in spans]
        )
        return _replace(text, replaced) if replaced else text

    def _note_spans(
        self, rule: Rule, spans: list[Span], text: str, path: str, hidden: list[tuple[int, int, str]]
    ) -> None:
        known = self.found.get(rule.name)
        if known is not None:
            self.found[rule.name] = attrs.evolve(known, count=known.count + len(spans))
            return
        self.found[rule.name] = GuardrailViolation(
            rule=rule.name,
            action=rule.action,
            description=f"{path} matches {rule.name!r}",
            where=path,
            excerpt=_excerpt(text, spans[0], hidden),
            count=len(spans),
        )


def _outside(spans: list[Span], labels: list[Span]) -> list[Span]:
    # Only the last label that begins no later can hold a span.
    starts = [start for start, _ in labels]
    return [
        span
        for span in spans
        if not (before := bisect_right(starts, span[0])) or labels[before - 1][1] < span[1]
    ]


def _merged(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    # Of spans that overlap, one with the name of the first, so that no piece of either is left.
    result: list[tuple[int, int, str]] = []
    for start, end, name in sorted(spans):
        if result and start < result[-1][1]:
            first, last, kept = result[-1]
            result[-1] = (first, max(end, last), kept)
        else:
            result.append((start, end, name))
    return result


def _replace(text: str, spans: list[tuple[int, int, str]]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end, name in spans:
        pieces += text[done:start], _label(name)
        done = end
    return "".join([*pieces, text[done:]])


def _excerpt(text: str, span: Span, hidden: list[tuple[int, int, str]]) -> str:
    start, end = span
    before = _replace(
        text[:start][-_SECRETS_WITHIN:], _shifted(hidden, max(0, start - _SECRETS_WITHIN), start)
    )
    found = _replace(
        text[start:end][:_SECRETS_WITHIN], _shifted(hidden, start, min(end, start + _SECRETS_WITHIN))
    )
    after = _replace(text[end:][:_SECRETS_WITHIN], _shifted(hidden, end, end + _SECRETS_WITHIN))
    middle = mask_text(found)[:_LONGEST_EXCERPT]
    return f"{mask_text(before)[-_EXCERPT:]}{middle}{mask_text(after)[:_EXCERPT]}"


def _shifted(spans: list[tuple[int, int, str]], start: int, end: int) -> list[tuple[int, int, str]]:
    # Those that reach into a piece of the text, by their places in it.
    return [
        (max(a, start) - start, min(b, end) - start, name) for a, b, name in spans if a < end and b > start
    ]
