"""
GuardrailsHook: rules about tools and texts, kept at the gates of a run.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, NoReturn, cast

import attrs

from ._attacks import DEFAULT_BLOCKED_PATTERNS
from ._detectors import ARGUMENTS, PROMPT, RESULT, Detector, Find
from ._gate import ProtectedEvent
from ._hook import on
from ._inspection import CONTEXT, Action, GuardrailViolation, Inspection, Rule, Rules
from ._pattern_cost import MOST_STEPS, WINDOW, steps, windowed
from ._personal_data import DEFAULT_PII_PATTERNS
from ._policy import (
    PolicyHook,
    Recent,
    function,
    listed,
    misfit,
    names,
    optional,
    report,
    setting,
    warn,
    whole,
)
from ._priority import Priority
from ._readonly import thaw
from ._texts import TooLargeError, size_of
from ._verdict import name_of
from .gates import (
    AfterToolCallEvent,
    ApproveToolCallEvent,
    BeforeInvocationEvent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
)
from .values import ToolResult

_ACTIONS: Final = ("block", "warn", "redact", "allow")

BLOCKED_TOOL: Final = "blocked_tool"
TOOL_NOT_ALLOWED: Final = "tool_not_allowed"
PROMPT_LENGTH: Final = "max_prompt_length"
RESULT_LENGTH: Final = "max_tool_result_length"
TOO_LARGE: Final = "too_large"

_OWN_ACTIONS: Final[Mapping[str, Action]] = {
    BLOCKED_TOOL: "block",
    TOOL_NOT_ALLOWED: "block",
    PROMPT_LENGTH: "block",
    RESULT_LENGTH: "warn",
    TOO_LARGE: "block",
}
"""What is done about each rule that is no pattern, unless a setting says otherwise."""

_STRUCTURE: Final = frozenset({BLOCKED_TOOL, TOOL_NOT_ALLOWED, TOO_LARGE})
"""Rules that `default_action` does not reach, and that have nothing to redact."""

_INSTRUCTIONS: Final = frozenset(
    {"system", "developer", "assistant", "model", "ai", "function_call", "reasoning"}
)
_ANSWERS: Final = frozenset({"tool", "function", "tool_result", "function_call_output"})
"""Whose a message is, by its role or, where it has none, its type: as OpenAI, Anthropic, Google and LangChain
call it."""

LAST: Final = 2**31 - 1
"""The priority of what looks again at what others have written since."""

_VIOLATIONS: Final = 1000


def _rejected(where: str, why: str) -> NoReturn:
    msg = f"{where} {why}."
    raise ValueError(msg)


def _as_pattern(value: Any) -> re.Pattern[Any]:
    pattern: re.Pattern[Any] = value
    return pattern


def _as_mapping(value: Any) -> Mapping[Any, Any]:
    mapping: Mapping[Any, Any] = value
    return mapping


def _detector(where: str, value: Any) -> Detector:
    asked: Any = value.find if isinstance(value, Detector) else value
    if inspect.iscoroutinefunction(asked):
        misfit(where, "a plain function: nothing waits for an async one", asked)
    if isinstance(value, Detector):
        if not callable(asked):
            misfit(where, "a Detector of a function; a regular expression stands by itself", asked)
        return value
    if isinstance(value, str):
        try:
            value = re.compile(value)
        except re.error as error:
            _rejected(where, f"is no regular expression: {error}")
    if isinstance(value, re.Pattern):
        pattern = _as_pattern(value)
        if not isinstance(pattern.pattern, str):
            misfit(where, "a pattern of str, not of bytes", pattern)
        if not pattern.pattern:
            _rejected(where, "is empty, and would find nothing")
        if steps(pattern, WINDOW) > MOST_STEPS:
            _rejected(
                where,
                f"could take too long on some text: {pattern.pattern!r}. Repeat nothing that itself repeats "
                "or branches, bound it ({0,20}), make it possessive (++), or give a function",
            )
        return Detector(windowed(pattern), stable=True)
    find: Any = value
    if not callable(find):
        misfit(
            where,
            "a regular expression, a Detector, or a function that takes a text and returns spans",
            value,
        )
    return Detector(cast("Find", find))


def _detectors(where: str, value: Any) -> Mapping[str, Detector]:
    if not isinstance(value, Mapping):
        misfit(where, 'a mapping of names to patterns, as in {"project": r"Project \\w{1,20}"}', value)
    given = _as_mapping(value)
    for name in given:
        if not isinstance(name, str) or not name:
            misfit(where, "a mapping with names as its keys", name)
        if name in _OWN_ACTIONS:
            _rejected(where, f"has a rule {name!r}, which there is already; give it another name")
    return MappingProxyType({name: _detector(f"{where}[{name!r}]", given[name]) for name in given})


def _action(where: str, value: Any) -> Action:
    if value not in _ACTIONS:
        misfit(where, 'one of "block", "warn", "redact" and "allow"', value, ValueError)
    action: Action = value
    return action


def _overrides(where: str, value: Any) -> Mapping[str, Action]:
    if not isinstance(value, Mapping):
        misfit(where, 'a mapping of rules to actions, as in {"email": "warn"}', value)
    given = _as_mapping(value)
    return MappingProxyType({rule: _action(f"{where}[{rule!r}]", given[rule]) for rule in given})


def _compile(cls: type[GuardrailsHook]) -> Rules:
    blocked: Mapping[str, Detector] = cls.blocked_patterns
    personal: Mapping[str, Detector] = cls.pii_patterns
    overrides: Mapping[str, Action] = cls.action_overrides
    where = f"{cls.__qualname__}.action_overrides"
    both = blocked.keys() & personal.keys()
    if both:
        msg = f"{cls.__qualname__} has {min(both)!r} in both blocked_patterns and pii_patterns; rename one."
        raise TypeError(msg)
    known = [*blocked, *personal, *_OWN_ACTIONS]
    for rule, action in overrides.items():
        if rule not in known:
            near = difflib.get_close_matches(str(rule), known, n=1, cutoff=0)
            msg = f"{where} names no rule {rule!r}. Did you mean {near[0]!r}?"
            raise TypeError(msg)
        if rule in _STRUCTURE and (action == "redact" or rule == TOO_LARGE):
            msg = f"{where}: {rule!r} cannot be {action!r}."
            raise TypeError(msg)
    rules = [Rule(name, found, _action_for(cls, name, "block"), False) for name, found in blocked.items()]
    rules += [Rule(name, found, _action_for(cls, name, "redact"), True) for name, found in personal.items()]
    return Rules(rules)


def _action_for(cls: type[GuardrailsHook], rule: str, own: Action) -> Action:
    default = own if rule in _STRUCTURE else cls.default_action or own
    overrides: Mapping[str, Action] = cls.action_overrides
    return overrides.get(rule, default)


def _blocked(seen: Inspection) -> list[GuardrailViolation]:
    return [found for found in seen.found.values() if found.action == "block"]


def _reason(blocked: list[GuardrailViolation]) -> str:
    more = f" (and {len(blocked) - 1} more)" if blocked[1:] else ""
    return f"{blocked[0].description}{more}"


def _place_of(message: Any) -> str:
    role = _read(message, "role") or _read(message, "type")
    if not isinstance(role, str):
        return PROMPT
    return CONTEXT if role in _INSTRUCTIONS else RESULT if role in _ANSWERS else PROMPT


def _read(message: Any, name: str) -> Any:
    return cast("Any", message).get(name) if isinstance(message, Mapping) else getattr(message, name, None)


def _parts_of(message: Any) -> list[Any]:
    # Of a user's message with answers of tools in it, as some providers want them sent.
    content: Any = cast("Any", message).get("content") if isinstance(message, Mapping) else None
    parts: list[Any] = listed(content) or []
    return parts if any(_place_of(part) == RESULT for part in parts) else []


def _text_length(value: Any) -> int:
    text = cast("Any", value).get("content") if isinstance(value, Mapping) else value
    return len(text) if isinstance(text, str) else 0


def _cut(value: Any, limit: int) -> Any:
    # To so many characters, where it is a text or has one; anything else becomes the JSON that a model reads.
    if isinstance(value, str):
        return str.__str__(value)[:limit]
    if isinstance(value, ToolResult):
        return (
            ToolResult(_cut(value.data, limit))
            if value.success
            else ToolResult(error=str(value.error)[:limit])
        )
    if attrs.has(cast("Any", type(value))) and isinstance(getattr(value, "text", None), str):
        return attrs.evolve(value, text=value.text[:limit])
    if isinstance(value, Mapping) and "content" in value:
        mapping: dict[str, Any] = dict(cast("Any", value))
        if isinstance(mapping["content"], str):
            return {**mapping, "content": mapping["content"][:limit]}
        if (parts := listed(mapping["content"])) is not None:
            return {**mapping, "content": _cut_parts(parts, limit)}
    return json.dumps(thaw(value), ensure_ascii=False, default=str)[:limit]


def _cut_parts(parts: list[Any], limit: int) -> list[Any]:
    # To so many characters in all; a part that is no text stays.
    result: list[Any] = []
    for part in parts:
        text = cast("Any", part).get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            kept = text[:limit]
            limit -= len(kept)
            result.append(kept if isinstance(part, str) else {**part, "text": kept})
        else:
            result.append(part)
    return result


class GuardrailsHook(PolicyHook):
    """
    Keep rules about tools and texts: refuse, redact or warn, by rule.

    Prompts, messages and arguments are redacted before they go on, results before anybody sees them; what is
    refused is judged by the arguments as they will be executed. A guardrail that breaks refuses.

    Handlers run on the emitting thread, or on the loop that awaits the gate. All of it is thread-safe if the
    detectors and `on_violation` are.
    """

    abstract = True
    priority = Priority.SECURITY

    block_tools: ClassVar[Any] = setting((), names)
    """Tools that are never executed."""

    allow_only_tools: ClassVar[Any] = setting(None, optional(names))
    """The only tools that are executed; None: all but those of `block_tools`."""

    blocked_patterns: ClassVar[Any] = setting(DEFAULT_BLOCKED_PATTERNS, _detectors)
    """What may be in no prompt, argument or result, by name."""

    pii_patterns: ClassVar[Any] = setting(DEFAULT_PII_PATTERNS, _detectors)
    """Personal data and keys, by name."""

    max_prompt_length: ClassVar[int | None] = setting(100_000, optional(whole(1)))
    """Characters of a prompt; None: any."""

    max_tool_result_length: ClassVar[int | None] = setting(50_000, optional(whole(1)))
    """Characters of a result; None: any."""

    default_action: ClassVar[Action | None] = setting(None, optional(_action))
    """What is done where `action_overrides` does not say it; None: what fits the kind of rule."""

    action_overrides: ClassVar[Any] = setting(MappingProxyType({}), _overrides)
    """What is done about a rule, by its name."""

    on_violation: ClassVar[Any] = setting(None, optional(function), arguments=("violation",))
    """Called with each GuardrailViolation; what it raises is reported, and changes nothing."""

    _violations: ClassVar[Recent[GuardrailViolation]] = Recent(_VIOLATIONS)
    _compiled: ClassVar[tuple[tuple[Any, ...], Rules] | None] = None
    _seen: Any = object()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls._violations = Recent(_VIOLATIONS)
        super().__init_subclass__(**kwargs)

    @classmethod
    def _settled(cls) -> None:
        cls._rules()
        if inspect.iscoroutinefunction(cls.on_violation):
            msg = f"{cls.__qualname__}.on_violation must be a plain function: nothing waits for an async one."
            raise TypeError(msg)

    @classmethod
    def _rules(cls) -> Rules:
        # A setting may be assigned later; what it means with the others is worked out when it counts.
        stated = (cls.blocked_patterns, cls.pii_patterns, cls.default_action, cls.action_overrides)
        compiled = cls.__dict__.get("_compiled")
        if compiled is None or any(one is not other for one, other in zip(compiled[0], stated, strict=True)):
            compiled = (stated, _compile(cls))
            cls._compiled = compiled
        return cast("Rules", compiled[1])

    @classmethod
    def violations(cls) -> tuple[GuardrailViolation, ...]:
        """
        Return the last 1,000 violations of this hook, the oldest first. Safe to call from any thread.
        """
        return cls._violations.all()

    @classmethod
    def clear_violations(cls) -> None:
        """
        Forget the violations so far.
        """
        cls._violations = Recent(_VIOLATIONS)

    @on(BeforeInvocationEvent)
    def prompt(self, event: BeforeInvocationEvent) -> None:
        """
        Judge the message of a run, and redact it.
        """
        self._guard(event, "prompt", "cancel", self._prompt)

    @on(BeforeInvocationEvent, priority=LAST)
    def final_prompt(self, event: BeforeInvocationEvent) -> None:
        """
        Judge the message again if somebody has rewritten it since.
        """
        if not event.cancel and event.message is not self._seen:
            self._guard(event, "final_prompt", "cancel", self._prompt)

    @on(BeforeModelCallEvent)
    def messages(self, event: BeforeModelCallEvent) -> None:
        """
        Judge what the model is sent, and redact it.
        """
        self._guard(event, "messages", "cancel", self._messages)

    @on(BeforeModelCallEvent, priority=LAST)
    def final_messages(self, event: BeforeModelCallEvent) -> None:
        """
        Judge what the model is sent again if somebody has rewritten it since.
        """
        if not event.cancel and event.messages is not self._seen:
            self._guard(event, "final_messages", "cancel", self._messages)

    @on(BeforeToolCallEvent)
    def arguments(self, event: BeforeToolCallEvent) -> None:
        """
        Redact the arguments of a tool call.
        """
        self._guard(event, "arguments", "cancel", self._arguments)

    @on(BeforeToolCallEvent, priority=LAST)
    def final_arguments(self, event: BeforeToolCallEvent) -> None:
        """
        Redact the arguments again if somebody has rewritten them since.
        """
        if not event.cancel and event.arguments is not self._seen:
            self._guard(event, "final_arguments", "cancel", self._arguments)

    @on(ApproveToolCallEvent)
    def check(self, event: ApproveToolCallEvent) -> None:
        """
        Judge a tool call as it will be executed.
        """
        self._guard(event, "check", "denied", self._check)

    @on(AfterToolCallEvent)
    def result(self, event: AfterToolCallEvent) -> None:
        """
        Judge what a tool has answered, and redact it.
        """
        self._guard(event, "result", "result", self._result)

    def _prompt(self, event: BeforeInvocationEvent, seen: Inspection) -> tuple[str, Any]:
        return "message", self._judged_prompt(event.message, "message", PROMPT, seen)

    def _messages(self, event: BeforeModelCallEvent, seen: Inspection) -> tuple[str, Any]:
        sent: Any = event.messages
        if not isinstance(sent, (list, tuple)):
            return "messages", self._judged_prompt(sent, "messages", PROMPT, seen)
        old: list[Any] = list(sent)  # pyright: ignore[reportUnknownArgumentType]  # of anything
        new = [self._judged_message(message, f"messages[{index}]", seen) for index, message in enumerate(old)]
        same = all(one is other for one, other in zip(old, new, strict=True))
        return "messages", event.messages if same else new

    def _judged_message(self, message: Any, path: str, seen: Inspection) -> Any:
        place = _place_of(message)
        old = _parts_of(message) if place == PROMPT else []
        if not old:
            return self._judged_prompt(message, path, place, seen)
        new = [
            self._judged_prompt(part, f"{path}.content[{index}]", _place_of(part), seen)
            for index, part in enumerate(old)
        ]
        rest = {key: value for key, value in message.items() if key != "content"}
        new_rest = self._judged_prompt(rest, path, place, seen)
        if new_rest is rest and all(one is other for one, other in zip(old, new, strict=True)):
            return message
        return {**new_rest, "content": new}

    def _judged_prompt(self, value: Any, path: str, place: str, seen: Inspection) -> Any:
        limit = self.max_prompt_length if place == PROMPT else None
        if limit is not None and self._action_of(PROMPT_LENGTH) == "block" and _text_length(value) > limit:
            # It is refused anyway, and looking through it costs the more the longer it is.
            new, size = value, size_of(value, path)
        else:
            new, size = seen.look(value, path, place)
        if limit is not None and size > limit:
            new = self._too_long(PROMPT_LENGTH, new, size, limit, path, seen)
        return new

    def _arguments(self, event: BeforeToolCallEvent, seen: Inspection) -> tuple[str, Any]:
        only = Inspection(self._rules(), only_redacting=True)
        new, _ = only.look(event.arguments, "arguments", ARGUMENTS)
        seen.found.update(only.found)
        seen.is_changeable = only.is_changeable
        return "arguments", new

    def _check(self, event: ApproveToolCallEvent, seen: Inspection) -> tuple[str, Any]:
        name = name_of(event.tool_call)
        if name in self.block_tools:
            seen.note(BLOCKED_TOOL, self._action_of(BLOCKED_TOOL), f"the tool {name!r} is blocked", "tool")
        elif self.allow_only_tools is not None and name not in self.allow_only_tools:
            seen.note(
                TOOL_NOT_ALLOWED,
                self._action_of(TOOL_NOT_ALLOWED),
                f"the tool {name!r} is not allowed",
                "tool",
            )
        if not _blocked(seen):
            seen.look(event.arguments, "arguments", ARGUMENTS)
            for rule, found in seen.found.items():
                if found.action == "redact":
                    # Nobody can rewrite it any more.
                    seen.found[rule] = attrs.evolve(
                        found, action="block", description=f"{found.description}, after it was redacted"
                    )
        return "", None

    def _result(self, event: AfterToolCallEvent, seen: Inspection) -> tuple[str, Any]:
        old: Any = event.result
        if old is None:
            if event.error is None:
                return "result", None
            old = ToolResult(error=event.error)
        new, size = seen.look(old, "result", RESULT)
        limit = self.max_tool_result_length
        if limit is not None and size > limit:
            new = self._too_long(RESULT_LENGTH, new, size, limit, "result", seen)
        return "result", event.result if new is old else new

    def _too_long(self, rule: str, value: Any, size: int, limit: int, path: str, seen: Inspection) -> Any:
        action = self._action_of(rule)
        seen.note(rule, action, f"{path} has {size:,} characters, and {limit:,} are allowed", path)
        return _cut(value, limit) if action == "redact" else value

    def _action_of(self, rule: str) -> Action:
        return _action_for(type(self), rule, _OWN_ACTIONS[rule])

    def _guard(
        self,
        event: ProtectedEvent,
        handler: str,
        refusal: str,
        judge: Callable[[Any, Inspection], tuple[str, Any]],
    ) -> None:
        try:
            seen = Inspection(self._rules())
            try:
                field, value = judge(event, seen)
            except TooLargeError as error:
                field, value = "", None
                seen.note(TOO_LARGE, "block", str(error), handler)
            self._record(event, handler, seen)
            blocked = _blocked(seen)
            if blocked:
                self._refuse(event, refusal, _reason(blocked))
            elif field and value is not getattr(event, field):
                setattr(event, field, value)
            if field and not seen.is_changeable:
                self._seen = getattr(event, field)
        except Exception as error:
            report(self, handler, event, error)
            self._refuse(event, refusal, f"the guardrails failed ({type(error).__name__})")

    def _refuse(self, event: ProtectedEvent, field: str, reason: str) -> None:
        setattr(event, field, ToolResult(error=f"withheld: {reason}") if field == "result" else reason)

    def _record(self, event: ProtectedEvent, handler: str, seen: Inspection) -> None:
        call = event.get("tool_call")
        for found in seen.found.values():
            violation = attrs.evolve(
                found,
                gate=type(event).__name__,
                tool=None if call is None else name_of(call),
                correlation_id=event.correlation_id,
            )
            self._violations.add(violation)
            if violation.action == "warn":
                warn(self, handler, event, violation.description)
            if self.on_violation is not None:
                try:
                    self.on_violation(violation)
                except Exception as error:
                    report(self, "on_violation", event, error)
